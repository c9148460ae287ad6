"""Ctrl-C saves; --resume ends with the bits of a run that nobody stopped."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch

from end_to_end.conftest import TINY
from vitrail.files import safetensors_file

STEPS = 600
LISTENING = """
import signal, sys
from vitrail.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in a background job inherit that it is ignored
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_run_that_was_stopped_and_resumed_has_the_same_bits(vitrail, flowers, tmp_path):
    unbroken = tmp_path / "unbroken"
    line = ["train", str(flowers), *TINY, "--steps", str(STEPS), "--recipe.evaluate_every", "10", "--out"]

    for attempt in range(5):  # on a busy machine a run may be over before the key is pressed
        stopped = tmp_path / f"stopped-{attempt}"
        code, said = interrupted([*line, str(stopped)])
        if code:
            break
    assert code == 130 and "Traceback" not in said
    last = said.splitlines()[-1]
    step = int(last.split(" at step ")[1].split()[0])
    assert last == (
        f"vitrail: Interrupted at step {step} of {STEPS}, saved. Continue with: vitrail train --resume {stopped}"
    )
    assert 0 < step < STEPS and not (stopped / "model").exists()
    assert vitrail("predict", stopped, flowers).err == (
        f"vitrail: The run {stopped} has no model yet. Finish it with: vitrail train --resume {stopped}\n"
    )

    resumed = vitrail("train", "--resume", stopped)
    assert resumed.code == 0 and f"Going on after step {step} of {STEPS}." in resumed.err
    assert vitrail(*line, unbroken).code == 0
    ours = safetensors_file.load_tensors(stopped / "model" / "model.safetensors")
    theirs = safetensors_file.load_tensors(unbroken / "model" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    steps = [line.split(",")[0] for line in (stopped / "metrics.jsonl").read_text().splitlines() if "seconds" in line]
    assert len(steps) == len(set(steps)) == STEPS


def interrupted(words: list[str]) -> tuple[int, str]:
    """Run the command in a process of its own and press Ctrl-C once, after the first validation; code and stderr."""
    with subprocess.Popen([sys.executable, "-c", LISTENING, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said, pressed = [], False
        for line in process.stderr:
            said.append(line)
            if "validation accuracy" in line and not pressed:  # a second one would end it at once, unsaved
                process.send_signal(signal.SIGINT)
                pressed = True
        return process.wait(), "".join(said)


def test_ctrl_c_before_the_first_step_says_that_nothing_was_saved(vitrail, flowers, tmp_path, monkeypatch):
    from vitrail.train import fit

    def pressed(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fit, "open_dataset", pressed)
    answer = vitrail("train", flowers, *TINY, "--steps", 2, "--out", tmp_path / "run")
    assert (answer.code, answer.err) == (130, "vitrail: Interrupted; nothing was saved yet.\n")


def test_ctrl_c_during_the_evaluation_says_how_to_go_on(vitrail, flowers, tmp_path, monkeypatch):
    from vitrail.train import finish

    def pressed(*words: object) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    monkeypatch.setattr(finish, "write_bundle", pressed)
    answer = vitrail("train", flowers, *TINY, "--steps", 2, "--out", run)
    assert answer.code == 130
    assert answer.err.endswith(
        f"vitrail: Interrupted. What was saved is in {run}. Continue with: vitrail train --resume {run}\n"
    )
    monkeypatch.undo()
    assert vitrail("train", "--resume", run).code == 0
    assert (run / "report.html").is_file()
