from __future__ import annotations

import errno
import importlib
import sys
import threading
import time
from io import StringIO
from pathlib import Path

import pytest

from vitrail.errors import InterruptedRun
from vitrail.formatting import format_duration
from vitrail.services import progress
from vitrail.services.train_progress import TrainOutcome, follow_training, open_display
from vitrail.train.events import Note, PlanEvent, RunFolderEvent, StageEvent, StepProgress, ValidationEvent
from vitrail.train.plan import Plan


def step(number: int, steps: int = 100) -> StepProgress:
    return StepProgress(step=number, steps=steps, epoch=0.5, loss=1.25, images_per_second=1234.5, seconds_left=61.0)


def drawn(*events: object) -> list[str]:
    stream = StringIO()
    follow_training((event for event in (RunFolderEvent(Path("nowhere")), *events)), stream)
    return stream.getvalue().splitlines()


def test_of_quick_steps_only_the_last_has_a_line():
    lines = drawn(*(step(number) for number in range(1, 101)))
    assert lines == ["step 100/100  loss 1.250  1,234 images/s  1 min 01 s left"]


def test_a_step_has_a_line_when_five_seconds_have_passed(monkeypatch):
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    assert 20 < len(drawn(*(step(number) for number in range(1, 101)))) < 70


def test_notes_plans_and_evaluations_have_lines():
    lines = drawn(Note("Hello."), PlanEvent(Plan(), {"recipe.steps": "asked for"}), ValidationEvent(7, 0.5, 0.75))
    assert lines == [
        "Hello.",
        "model     12 blocks, width 768",
        "pictures  224 x 224 x 3, 196 patches of 16 x 16",
        "steps     1,000 of 128 pictures                  asked for",
        "machine   muon, cpu, float32",
        "step 7  validation accuracy 50.0%  loss 0.750",
    ]


def test_other_figures_are_called_by_their_names_and_may_be_missing():
    assert drawn(ValidationEvent(7, 0.8765, 0.75, "AUROC"), ValidationEvent(8, None, 0.5, "R2")) == [
        "step 7  validation AUROC 0.876  loss 0.750",
        "step 8  validation R2 unknown  loss 0.500",
    ]


class Screen(StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_with_the_facts_and_notes_above_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    with open_display(screen) as view:
        for event in (Note("[not] markup."), step(1), ValidationEvent(1, 0.75, 0.1), step(2)):
            view.show(event)
        view.bar.refresh()
    text = screen.getvalue()
    assert "[not] markup." in text and "2/100" in text
    assert "loss 1.250  1,234 images/s  val 75.0%" in text and "1 min 01 s left" in text


class Broken(StringIO):
    """A file on a full disk, or a terminal that is gone."""

    def __init__(self, terminal: bool):
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_training_goes_on_where_nothing_can_be_shown(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    died = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    events = [RunFolderEvent(Path("run")), Note("Hello."), step(1), ValidationEvent(1, 0.75, 0.1), step(100)]
    assert follow_training((event for event in events), Broken(terminal)) == TrainOutcome(Path("run"), None)
    with open_display(Broken(terminal)) as view:
        for event in events:
            view.show(event)
        if terminal:
            refreshing = view.bar.live._refresh_thread
            refreshing.join(0.5)
            assert refreshing.is_alive()
    assert died == []


def interrupted(*events: object) -> object:
    yield from events
    raise KeyboardInterrupt


@pytest.mark.parametrize("opened", [False, True])
def test_ctrl_c_with_nothing_kept_says_so(opened, tmp_path):
    events = [Note("Hello."), *([RunFolderEvent(tmp_path)] if opened else [])]
    with pytest.raises(InterruptedRun, match=r"^Interrupted; nothing was saved yet\.$") as caught:
        follow_training(interrupted(*events), StringIO())
    assert caught.value.exit_code == 130


@pytest.mark.parametrize("kept", ["plan.toml", "folds.json"])
def test_ctrl_c_with_something_kept_says_how_to_go_on(kept, tmp_path):
    (tmp_path / kept).touch()
    with pytest.raises(InterruptedRun, match=rf"Continue with: vitrail train --resume {tmp_path}$"):
        follow_training(interrupted(RunFolderEvent(tmp_path)), StringIO())


def test_events_end_with_the_run_folder_and_what_came_of_it(tmp_path):
    events = [Note("Hello."), RunFolderEvent(tmp_path)]
    assert follow_training((event for event in events), StringIO()) == TrainOutcome(tmp_path, None)


def test_a_dry_run_is_not_followed():
    with pytest.raises(ValueError, match="dry run"):
        follow_training((event for event in [Note("Hello.")]), StringIO())


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3600, "1 h 00 min"), (12060, "3 h 21 min")],
)
def test_durations_are_said_as_people_say_them(seconds, words):
    assert format_duration(seconds) == words


def wait_for(stream: StringIO, text: str) -> bool:
    return any(text in stream.getvalue() or time.sleep(0.01) for _ in range(500))


def test_a_stage_has_a_line_when_it_is_not_over_after_two_seconds(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_UNTIL_SHOWN", 0.05)
    stream = StringIO()
    with open_display(stream) as view:
        view.show(StageEvent("Opening flowers"))
        view.show(StageEvent("Measuring some steps"))
        assert wait_for(stream, "Measuring some steps ...\n")
        view.show(Note("Done."))
        view.show(StageEvent("Writing"))
    time.sleep(0.15)
    assert stream.getvalue() == "Measuring some steps ...\nDone.\n", "what is over before has no line"


def test_a_stage_that_takes_long_says_again_and_again_for_how_long(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_UNTIL_SHOWN", 0.01)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_STAGE_LINES", 0.02)
    stream = StringIO()
    with open_display(stream) as view:
        view.show(StageEvent("Checking 178 pictures"))
        assert wait_for(stream, "Checking 178 pictures ... 0 s so far\nChecking 178 pictures ... 0 s so far\n")
        assert stream.getvalue().startswith("Checking 178 pictures ...\n")
    ended = stream.getvalue()
    time.sleep(0.1)
    assert stream.getvalue() == ended


def test_what_follows_the_last_picture_of_a_check_is_named(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_UNTIL_SHOWN", 0.05)
    with progress.track_images_and("Comparing the pictures") as track:
        assert list(track(iter("abc"), 3)) == ["a", "b", "c"]
        time.sleep(0.3)
    assert capsys.readouterr().err == "Comparing the pictures ...\n"


def test_a_terminal_shows_the_stage_at_once_and_hides_it_when_the_plan_is_there(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    with open_display(Screen()) as view:
        view.show(StageEvent("Opening flowers"))
        (task,) = view.bar.tasks
        assert task.visible and task.fields["phase"] == "Opening flowers" and task.total is None
        view.show(PlanEvent(Plan(), {}))
        assert not task.visible


def test_a_measured_number_of_threads_is_in_the_plan():
    (line,) = [line for line in drawn(PlanEvent(Plan(), {"compute.threads": "measured: ..."})) if "threads" in line]
    assert line.split() == ["threads", "0", "measured:", "..."]


def test_a_library_that_takes_long_to_import_is_announced_before_it_by_the_first_process(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    for rank, said in (("0", "Loading it\nimporting\n"), ("1", "importing\n")):
        name = f"slow_library_{rank}"
        (tmp_path / f"{name}.py").write_text("import sys\nprint('importing', file=sys.stderr)\n")
        monkeypatch.setenv("RANK", rank)
        finders = list(sys.meta_path)
        with progress.announce_slow_import(name, "Loading it"):
            importlib.import_module(name)
        assert capsys.readouterr().err == said
        assert sys.meta_path == finders
        with progress.announce_slow_import(name, "Loading it"), progress.announce_slow_import("other", "No"):
            importlib.import_module(name)
        assert capsys.readouterr().err == "" and sys.meta_path == finders, "what is there, or not needed, has no line"
