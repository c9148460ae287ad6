"""What a training does when it is asked to stop or to save, wherever it is at that moment (part A, 5 to 7)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import partners
from killing import SHORT, draw
from nursery import Nursery
from vitrail.files import atomic
from vitrail.train import checkpoint, finish, fit, loop, trainer
from vitrail.train.planning import fingerprint

pytestmark = pytest.mark.serial

STEPS = 9
STOPPING = [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("drawn") / "pictures.npz")


@pytest.fixture
def kept_handlers() -> Iterator[None]:
    """Signals do here what they do in a program of its own."""
    before = {number: signal.getsignal(number) for number, _ in STOPPING}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def send_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Send a signal to this process when a place is reached for the fourth time."""

    def arranged(place: str, number: int, times: int = 4, again: int = 1) -> None:
        module, name = {
            "step": (loop, "apply_step"),
            "data": (loop, "augment_batch"),
            "save": (atomic, "write_json"),
            "validation": (trainer, "run_inference"),
            "conclusion": (finish, "write_predictions"),
        }[place]
        true, count = vars(module)[name], 0

        def watched(*words: object, **more: object) -> object:
            nonlocal count
            count += place != "save" or "state.json" in str(words[0])
            if count == times:
                count += 1
                for _ in range(again):
                    os.kill(os.getpid(), number)
            return true(*words, **more)

        monkeypatch.setattr(module, name, watched)

    return arranged


def begin(vitrail, pictures: Path, run: Path, *more: object):
    return vitrail("train", pictures, *SHORT, "--steps", STEPS, "--recipe.save_every", 2, "--out", run, *more)


@pytest.mark.parametrize(("number", "code"), STOPPING)
def test_A5_A6_A7_a_signal_that_stops_saves_one_checkpoint_and_says_how_to_go_on(
    number, code, vitrail, pictures, tmp_path, send_in, kept_handlers, monkeypatch
):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    run = tmp_path / "run"
    send_in("step", number)
    answer = begin(vitrail, pictures, run)
    said = f"Interrupted at step 4 of {STEPS}, saved. Continue with: vitrail train --resume {run}"
    assert (answer.code, answer.err.splitlines()[-1]) == (code, f"vitrail: {said}")
    assert checkpoint.find_newest_checkpoint(run / "checkpoints")[0] == run / "checkpoints" / "step-00000004"
    assert (run / "log.txt").read_text().endswith(f"{said}\n")
    monkeypatch.undo()
    assert "Going on after step 4 of 9." in vitrail("train", "--resume", run).err


@pytest.mark.wide
@pytest.mark.parametrize(("place", "times", "step"), [("data", 4, 4), ("save", 2, 5), ("validation", 5, 5)])
def test_A5_SIGTERM_while_pictures_are_awaited_or_a_checkpoint_or_a_validation_is_made(
    place, times, step, vitrail, pictures, tmp_path, send_in, kept_handlers
):
    send_in(place, signal.SIGTERM, times)
    answer = begin(vitrail, pictures, tmp_path / "run")
    assert answer.code == 143 and f"Interrupted at step {step} of {STEPS}, saved." in answer.err
    whole, complaints = checkpoint.find_newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert whole is not None and whole.name == f"step-{step:08d}" and complaints == []


@pytest.mark.wide
def test_A5_SIGTERM_twice_leaves_a_whole_checkpoint_and_ends_with_143(pictures, tmp_path):
    run = tmp_path / "run"
    with Nursery() as nursery:
        child = nursery.start("train", pictures, *SHORT, "--steps", 100_000, "--recipe.save_every", 5, "--out", run)
        awaited(lambda: (run / "checkpoints" / "LATEST").is_file())
        for _ in range(2):
            os.kill(child.pid, signal.SIGTERM)
        assert nursery.wait(child).code in (143, -signal.SIGTERM)
        whole, complaints = checkpoint.find_newest_checkpoint(run / "checkpoints")
        assert whole is not None and complaints == []
        going = nursery.start("train", "--resume", run)
        awaited(lambda: going.said.is_file() and "\nstep " in going.said.read_text())
        os.kill(going.pid, signal.SIGTERM)
        assert nursery.wait(going).code == 143


@pytest.mark.first(1)
@pytest.mark.parametrize(("number", "code"), STOPPING)
def test_A5_a_signal_during_the_conclusion_ends_it_and_the_resume_redoes_it(
    number, code, vitrail, pictures, tmp_path, send_in, kept_handlers, monkeypatch
):
    run = tmp_path / "run"
    send_in("conclusion", number, 1)
    answer = begin(vitrail, pictures, run)
    assert answer.code == code
    assert f"Interrupted after the last step, which is saved. Continue with: vitrail train --resume {run}" in answer.err
    monkeypatch.undo()
    assert vitrail("train", "--resume", run).code == 0 and (run / "report.html").is_file()


@pytest.mark.wide
@pytest.mark.parametrize(("place", "times"), [("step", STEPS), ("save", 5)])
def test_A5_a_signal_in_the_last_step_or_its_save_stops_before_the_evaluation(
    place, times, vitrail, pictures, tmp_path, send_in, kept_handlers, monkeypatch
):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    run = tmp_path / "run"
    send_in(place, signal.SIGTERM, times)
    answer = begin(vitrail, pictures, run)
    said = f"vitrail: Interrupted after the last step, which is saved. Continue with: vitrail train --resume {run}"
    assert (answer.code, answer.err.splitlines()[-1]) == (143, said)
    assert checkpoint.find_newest_checkpoint(run / "checkpoints")[0] == run / "checkpoints" / "step-00000009"
    assert not (run / "model").exists()
    monkeypatch.undo()
    assert vitrail("train", "--resume", run).code == 0 and (run / "report.html").is_file()


LAST_SAVE = """
import os, signal, sys
from vitrail.cli.main import main
from vitrail.train import checkpoint

true = checkpoint.save_checkpoint

def save(*words):
    if words[1] == 6:
        os.kill(os.getpid(), signal.SIGTERM)
    return true(*words)

checkpoint.save_checkpoint = save
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_A5_a_signal_in_the_save_after_the_last_step_lets_the_other_processes_go(engine, pictures, tmp_path):
    words = ["train", pictures, *SHORT, "--steps", 6, "--compute.strategy", engine, "--out", tmp_path / "run"]
    processes = partners.start(["-c", LAST_SAVE, *map(str, words)])
    (code, _, said), (other, _, nothing) = partners.ended(processes)
    assert (code, other, nothing) == (143, 0, ""), said
    assert "Interrupted after the last step, which is saved." in said and not partners.orphans(processes)


def test_A6_ctrl_c_twice_ends_at_once_and_the_checkpoint_before_is_whole(
    vitrail, pictures, tmp_path, send_in, kept_handlers
):
    run = tmp_path / "run"
    send_in("step", signal.SIGINT, 4, again=2)
    answer = begin(vitrail, pictures, run)
    assert answer.code == 130
    assert f"Interrupted. What was saved is in {run}. Continue with: vitrail train --resume {run}" in answer.err
    assert checkpoint.find_newest_checkpoint(run / "checkpoints")[0] == run / "checkpoints" / "step-00000002"


def test_A7_USR1_saves_and_goes_on(vitrail, pictures, tmp_path, send_in, kept_handlers, monkeypatch):
    saved = []
    true = checkpoint.save_checkpoint
    monkeypatch.setattr(checkpoint, "save_checkpoint", lambda *words: saved.append(words[1]) or true(*words))
    send_in("step", signal.SIGUSR1, 5)
    answer = begin(vitrail, pictures, tmp_path / "run")
    assert answer.code == 0 and saved == [2, 4, 5, 6, 8, 9]
    assert f"Saved after step 5 of {STEPS}, as a signal asked; the training goes on." in answer.err


@pytest.mark.wide
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_A7_USR1_before_the_steps_or_after_them_ends_nothing(
    dry, vitrail, pictures, tmp_path, send_in, kept_handlers, monkeypatch
):
    came = []
    monkeypatch.setattr(fit, "fingerprint_dataset", asking(fingerprint.fingerprint_dataset))
    send_in("conclusion", signal.SIGUSR1, 1)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    answer = begin(vitrail, pictures, tmp_path / "run", *dry)
    signal.signal(signal.SIGUSR1, before)
    assert (answer.code, came) == (0, [])


def asking(true: Callable[..., object]) -> Callable[..., object]:
    """The same, after a signal to save."""

    def asked(*words: object) -> object:
        os.kill(os.getpid(), signal.SIGUSR1)
        return true(*words)

    return asked


def test_A7_under_slurm_the_message_says_how_the_job_is_put_back(
    vitrail, pictures, tmp_path, send_in, kept_handlers, monkeypatch
):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    send_in("step", signal.SIGTERM)
    answer = begin(vitrail, pictures, tmp_path / "run")
    assert answer.code == 143
    assert answer.err.endswith("(this is SLURM job 4711: scontrol requeue 4711 runs its script again)\n")


@pytest.mark.slow
def test_A5_A7_a_process_of_its_own_ends_with_143_and_129(pictures, tmp_path):
    run = tmp_path / "run"
    with Nursery() as nursery:
        child = nursery.start("train", pictures, *SHORT, "--steps", 100_000, "--recipe.save_every", 5, "--out", run)
        awaited(lambda: (run / "checkpoints" / "LATEST").is_file())
        os.kill(child.pid, signal.SIGTERM)
        ended = nursery.wait(child)
        assert ended.code == 143 and "saved. Continue with" in ended.said
        child = nursery.start("train", "--resume", run)
        awaited(lambda: child.said.is_file() and "\nstep " in child.said.read_text())
        os.kill(child.pid, signal.SIGHUP)
        assert nursery.wait(child).code == 129


def awaited(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "that never happened"
        time.sleep(0.02)
