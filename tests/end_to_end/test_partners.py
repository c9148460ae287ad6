"""Several processes train one model, by the command line: as one would, and through deaths and signals.

H1 to H3 are about one process; H4 to H10 of RELIABILITY are here and in unit/train/distributed/test_two_processes.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import partners
from vitrail.files import safetensors_file

pytestmark = [pytest.mark.wide, pytest.mark.serial]

STEPS = 150
PRETRAINED = ("--pretrain.steps", "300", "--pretrain.batch_size", "16")


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small noisy pictures, the brighter the higher their class; 47 are held out, which no batch divides."""
    drawn = np.random.default_rng(0)
    classes = np.arange(233) % 3
    pictures = (drawn.integers(0, 90, (233, 16, 16)) + 60 * classes[:, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("blobs") / "blobs.npz"
    np.savez(path, train_images=pictures, train_labels=classes)
    return path


def line(blobs: Path, out: Path, *more: str, steps: int = STEPS, model: str = "vit_mu_patch8_16") -> list[str]:
    recipe = ["--recipe.batch_size", "8", "--recipe.evaluate_every", "75", "--recipe.optimizer", "adamw"]
    compute = ["--compute.precision", "float32", "--compute.threads", "1"]
    begin = ["-m", "vitrail", "train", str(blobs), *(["--model", model] if model else []), "--steps", str(steps)]
    return [*begin, *recipe, *compute, "--out", str(out), *more]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors_file.load_tensors(run / "model" / "model.safetensors")


def equal(ours: Path, theirs: Path, file: str = "model/model.safetensors") -> bool:
    mine, others = safetensors_file.load_tensors(ours / file), safetensors_file.load_tensors(theirs / file)
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


def wait_for_step(run: Path, step: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with_rows = run / "metrics.jsonl"
        if with_rows.exists() and with_rows.read_text().count("seconds") >= step:
            return
        time.sleep(0.01)
    raise AssertionError(f"{run} never came to step {step}")


@pytest.fixture(scope="module")
def unbroken(blobs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that nobody disturbed."""
    run = tmp_path_factory.mktemp("runs") / "unbroken"
    processes = partners.start(line(blobs, run))
    (code, out, err), (other_code, other_out, other_err) = partners.ended(processes)
    assert (code, other_code) == (0, 0), err + other_err
    assert "Report" in out and not other_out and not other_err  # rank 0 alone prints
    assert not partners.orphans(processes)
    return run


def test_two_ranks_see_the_same_batches_as_one_process_and_learn_the_same(unbroken, blobs, tmp_path, vitrail):
    alone = tmp_path / "alone"
    assert vitrail(*line(blobs, alone)[2:]).code == 0
    ours, theirs = ((run / "metrics.jsonl").read_text().splitlines() for run in (unbroken, alone))
    for one, other in zip(ours, theirs, strict=True):
        row, same = json.loads(one), json.loads(other)
        assert row.get("images") == same.get("images")
        loss = "loss" if "loss" in row else "val_loss"
        assert row[loss] == pytest.approx(same[loss], abs=0.02)


def test_two_ranks_keep_to_their_minutes_are_killed_and_are_repeated_by_their_plan(blobs, tmp_path):
    """Rank 0 alone replans; a rank that followed other steps would wait for the other for ever."""
    run, again = tmp_path / "run", tmp_path / "again"
    words = [each for each in line(blobs, run) if each not in ("--steps", str(STEPS))]
    processes = partners.start([*words, "--minutes", "0.1"])
    wait_for_step(run, 100)
    processes[0].send_signal(signal.SIGTERM)
    assert [code for code, _, _ in partners.ended(processes)] == [143, 143]
    answers = partners.ended(partners.start(["-m", "vitrail", "train", "--resume", str(run)]))
    assert [code for code, _, _ in answers] == [0, 0], answers
    assert "steps_history = [[0, " in (run / "plan.toml").read_text()
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(row["elapsed"] for row in rows) == pytest.approx(6, rel=0.1)
    plan = ["-m", "vitrail", "train", "--plan", str(run / "plan.toml"), "--out", str(again)]
    answers = partners.ended(partners.start(plan))
    assert [code for code, _, _ in answers] == [0, 0], answers
    assert equal(run, again)


def test_a_port_that_another_program_has_ends_all_ranks_in_time(blobs, tmp_path):
    words = line(blobs, tmp_path / "run", "--compute.timeout", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and never says a word
        began = time.monotonic()
        answers = partners.ended(partners.start_each([words] * 2, port=server.getsockname()[1]), 60)
    assert time.monotonic() - began < 40
    for rank, (code, _, err) in enumerate(answers):
        assert code == 7 and f"vitrail: Rank {rank} of 2 did not meet the others at 127.0.0.1:" in err, err
        assert "See that all of them were started and that the port is free." in err and "Traceback" not in err
    assert "another program may have the port" in answers[1][2]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0, "torchrun"])
def test_H4_the_death_of_a_rank_ends_the_others_and_the_run_goes_on_with_the_same_bits(
    victim, unbroken, blobs, tmp_path
):
    run = tmp_path / "run"
    if victim == "torchrun":
        kill_the_launcher(blobs, run)
        return
    processes = partners.start(line(blobs, run, "--recipe.save_every", "10"))
    wait_for_step(run, 50)
    began = time.monotonic()
    processes[victim].kill()
    survivor = processes[1 - victim]
    code = survivor.wait(timeout=30)
    assert time.monotonic() - began < 10
    assert code == 7
    answers = partners.ended(processes)
    said = answers[1 - victim][2].splitlines()[-1]
    found = re.match(rf"vitrail: Rank {victim} \(pid {processes[victim].pid} on .*\) died at step (\d+), so ", said)
    assert found and int(found[1]) >= 50, said
    assert said.endswith(f"Continue with: vitrail train --resume {run}") and "Traceback" not in answers[1 - victim][2]
    assert not partners.orphans(processes)  # H10
    again = partners.ended(partners.start(["-m", "vitrail", "train", "--resume", str(run)]))
    assert [code for code, _, _ in again] == [0, 0], again
    assert equal(run, unbroken)


def test_H6_ranks_with_other_data_end_before_the_first_step(blobs, tmp_path):
    with np.load(blobs) as arrays:
        other = tmp_path / "other" / "blobs.npz"
        other.parent.mkdir()
        np.savez(other, train_images=255 - arrays["train_images"], train_labels=arrays["train_labels"])
    here = tmp_path / "here"
    here.mkdir()
    (here / "blobs.npz").write_bytes(blobs.read_bytes())
    run = tmp_path / "run"
    lines = [line(here / "blobs.npz", run), line(other, run)]
    answers = partners.ended(partners.start_each(lines))
    assert [code for code, _, _ in answers] == [3, 3], answers
    for _, _, err in answers:
        assert "do not have the same to work with (data: " in err and "on rank 1" in err
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "engine"), [(1, "ddp"), (0, "ddp"), (1, "fsdp")])
def test_H9_a_signal_to_one_rank_makes_all_save_once_and_H7_one_process_goes_on(
    asked, engine, blobs, unbroken, tmp_path, vitrail
):
    run = tmp_path / "run"
    answers = stop_at(partners.start(line(blobs, run, "--compute.strategy", engine)), run, 40, [asked])
    assert [code for code, _, _ in answers] == [143, 143], answers
    step = int(re.search(r"Interrupted at step (\d+) of 150, saved", answers[0][2])[1])  # type: ignore[index]
    (kept,) = (run / "checkpoints").glob("step-*")
    assert kept.name == f"step-{step:08d}" and (kept / "manifest.json").is_file()
    assert len(list(kept.glob("shard-*.safetensors"))) == (2 if engine == "fsdp" else 0)

    resumed = vitrail("train", "--resume", run)
    assert resumed.code == 0
    assert "processes 2 -> 1" in resumed.err  # the note of A12
    rows = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines() if "seconds" in text]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert {row["images"] for row in rows} == {8}
    theirs = [json.loads(text) for text in (unbroken / "metrics.jsonl").read_text().splitlines() if "seconds" in text]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in theirs], abs=0.02)


@pytest.mark.slow
def test_every_rank_goes_on_with_the_teacher_that_the_run_has_kept(blobs, unbroken, tmp_path):
    shutil.copytree(unbroken, tmp_path / "teacher")
    run = tmp_path / "run"
    words = line(blobs, run, "--recipe.save_every", "2", "--distill.teacher", str(tmp_path / "teacher"), steps=4)
    assert [code for code, _, _ in partners.ended(partners.start(words))] == [0, 0]
    whole = weights(run)
    shutil.rmtree(tmp_path / "teacher")
    for path in (run / "model", run / "checkpoints" / "step-00000004"):
        shutil.rmtree(path)
    (run / "report.html").unlink()
    again = partners.ended(partners.start(["-m", "vitrail", "train", "--resume", str(run)]))
    assert [code for code, _, _ in again] == [0, 0], again
    assert all(torch.equal(whole[name], each) for name, each in weights(run).items())


@pytest.fixture(scope="module")
def pretrained(blobs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks with pre-training that nobody disturbed."""
    run = tmp_path_factory.mktemp("runs") / "pretrained"
    answers = partners.ended(partners.start(line(blobs, run, *PRETRAINED, steps=20)))
    assert [code for code, _, _ in answers] == [0, 0], answers
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "number", "codes"),
    [
        (1, signal.SIGTERM, [143, 143]),
        (0, signal.SIGINT, [130, 130]),
        (1, signal.SIGKILL, [7, -signal.SIGKILL]),
    ],
)
def test_a_signal_to_one_rank_or_its_death_in_the_pre_training_saves_it_once_and_it_goes_on_with_the_same_bits(
    asked, number, codes, blobs, pretrained, tmp_path
):
    run = tmp_path / "run"
    answers = stop_at(partners.start(line(blobs, run, *PRETRAINED, steps=20)), run, 40, [asked], number)
    assert [code for code, _, _ in answers] == codes, answers
    said = re.compile(
        r"Interrupted at step (\d+) of 300 of the pre-training, saved\. Continue with: .* --resume (\S+)\n$"
    )
    told = [said.search(err) for code, _, err in answers if code > 0]
    assert {(found[1], found[2]) for found in told if found} == {(told[0][1], str(run))}, answers  # type: ignore[index]
    (kept,) = (run / "checkpoints" / "pretrain").glob("step-*")
    assert kept.name == f"step-{int(told[0][1]):08d}"  # type: ignore[index]

    again = partners.ended(partners.start(["-m", "vitrail", "train", "--resume", str(run)]))
    assert [code for code, _, _ in again] == [0, 0], again
    assert f"Going on after step {int(told[0][1])} of 300 of the pre-training." in again[0][2]  # type: ignore[index]
    assert equal(run, pretrained, "start.safetensors") and equal(run, pretrained)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["a checkpoint", "a CNN teacher"])
def test_what_rank_0_does_alone_before_the_first_step_is_what_one_process_does(
    first, blobs, unbroken, tmp_path, vitrail
):
    """Features and probes of a checkpoint, or a CNN that teaches."""
    two, one = tmp_path / "two", tmp_path / "one"
    if first == "a checkpoint":
        more, model, kept = ("--weights", str(unbroken), "--finetune.freeze_blocks", "0"), "", "start.safetensors"
    else:
        more, model, kept = (
            ("--distill.teacher", "cnn", "--distill.steps", "10"),
            "vit_mu_patch8_16",
            "teacher.safetensors",
        )
    answers = partners.ended(partners.start(line(blobs, two, *more, steps=10, model=model)))
    assert [code for code, _, _ in answers] == [0, 0], answers
    assert vitrail(*line(blobs, one, *more, steps=10, model=model)[2:]).code == 0
    assert equal(two, one, kept)
    rows = [[json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()] for run in (two, one)]
    losses = [[row["loss"] for row in those if "lr" in row] for those in rows]
    assert len(losses[0]) == 10 and losses[0] == pytest.approx(losses[1], abs=0.02)


def test_H8_figures_of_an_uneven_split_are_those_of_one_process(unbroken, vitrail):
    """They are made by rank 0 alone, after the others have gone: no batch is filled up with anything."""
    kept = json.loads((unbroken / "metrics-test.json").read_text())
    assert kept["n"] % 2 and kept["n"] == len((unbroken / "predictions" / "test.csv").read_text().splitlines()) - 1
    answer = vitrail("evaluate", unbroken, "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["metrics"]["accuracy"] == kept["accuracy"]


def stop_at(
    processes: partners.Processes, run: Path, step: int, ranks: list[int], number: int = signal.SIGTERM
) -> list[tuple[int, str, str]]:
    wait_for_step(run, step)
    for rank in ranks:
        processes[rank].send_signal(number)
    answers = partners.ended(processes)
    assert not partners.orphans(processes)  # H10
    return answers


def children(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and b"vitrail" in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_the_launcher(blobs: Path, run: Path) -> None:
    """Nothing wakes processes whose torchrun was killed: they must look by themselves."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(partners.free_port())]
    (launcher,) = partners.start([*words, *line(blobs, run, steps=100_000)], world=1)
    try:
        wait_for_step(run, 20)
        ranks = children(launcher.pid)
        assert len(ranks) == 2
        launcher.kill()
        until = time.monotonic() + 10
        while any(lives(pid) for pid in ranks) and time.monotonic() < until:
            time.sleep(0.1)
        assert not [pid for pid in ranks if lives(pid)]  # H10
    finally:
        for pid in children(launcher.pid):
            os.kill(pid, signal.SIGKILL)
    said = launcher.communicate()[1]
    assert f"vitrail: The launcher (pid {launcher.pid}) died at step" in said
