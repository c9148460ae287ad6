"""What the record scripts add up: rows kept, folds pooled, pairs compared, curves read. Nothing is trained here."""

from __future__ import annotations

import json
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from scripts import script

records, paces = script("making.records"), script("making.paces")


def run_folder(path: Path, test: dict[str, object]) -> Path:
    """The files of a complete run that a script reads."""
    path.mkdir(parents=True)
    facts = {"seconds": 12.34, "steps": 30, "images_seen": 3840, "model": "vit_pico_patch4_28", "parameters": 9}
    (path / "report.json").write_text(json.dumps(facts))
    (path / "metrics-test.json").write_text(json.dumps(test))
    (path / "environment.json").write_text(json.dumps({"threads": 2}))
    (path / "plan.toml").write_text('[compute]\nprecision = "bfloat16"\n')
    (path / records.WALL).write_text("[10.0, 5.5]\n")
    return path


def test_a_row_is_made_once_and_kept_before_the_next_is_begun(tmp_path):
    results, made = records.Results("trial", tmp_path), []

    def make() -> dict[str, object]:
        made.append(1)
        return {"accuracy": 0.5}

    assert results.row({"seed": 0}, make) == {"seed": 0, "accuracy": 0.5}
    assert json.loads((tmp_path / "trial.json").read_text())["rows"] == results.rows
    results.write({"mean": 0.5})
    again = records.Results("trial", tmp_path)
    assert again.row({"seed": 0}, make)["accuracy"] == 0.5 and len(made) == 1
    again.row({"seed": 1}, make)
    assert len(made) == len(again.rows) == 2


def test_rows_made_side_by_side_come_in_order_and_none_is_begun_too_late(tmp_path):
    results, together = records.Results("trial", tmp_path), Barrier(2, timeout=20)

    def meet(number: int) -> dict[str, object]:
        together.wait()  # fails unless two are being made at the same time
        return {"accuracy": number / 10}

    jobs = [({"seed": seed}, partial(meet, seed)) for seed in range(4)]
    assert [row["seed"] for row in results.side_by_side(jobs)] == [0, 1, 2, 3]
    late = [*jobs, ({"seed": 4}, partial(meet, 4))]
    assert [row["accuracy"] for row in results.side_by_side(late, stop_after=0)] == [0.0, 0.1, 0.2, 0.3]


def test_a_failure_among_rows_ends_them_all(tmp_path):
    begun = []

    def fail(seed: int) -> dict[str, object]:
        begun.append(seed)
        time.sleep(0.02)
        raise ValueError("no such source")

    jobs = [({"seed": seed}, partial(fail, seed)) for seed in range(50)]
    with pytest.raises(ValueError, match="no such source"):
        list(records.Results("trial", tmp_path).side_by_side(jobs))
    assert len(begun) < 50


def test_a_plan_has_the_steps_that_take_as_long_as_the_baselines(tmp_path, monkeypatch):
    said = {"plan": [100, 200, 150], "slow": [50, 90, 80], "quick": [210, 400, 290]}
    first = {"quick": {"pretrain.steps": 30}}
    models = ["pico"] * 6 + ["pico", "femto", "femto", "pico", "pico", "femto"]  # from the end, plan and slow in turns

    def foretold(words: tuple[str], minutes: float) -> dict[str, object]:
        name = words[0]
        chosen = {"model": models.pop(), "pixels": {"slow": 224}.get(name, 112), "frozen_blocks": 8}
        return {**chosen, "steps": said[name].pop(0), **first.get(name, {})}

    monkeypatch.setattr(paces, "dry_run", foretold)
    monkeypatch.setattr(paces, "Results", lambda name: records.Results(name, tmp_path))
    monkeypatch.setattr(paces, "ROUNDS", 3)
    plans = {name: (name,) for name in ("plan", "slow")}
    # the medians of 100, 200, 150 and of 0.5, 0.45, 0.53
    found = {"plan": ["--steps", 150], "slow": ["--steps", 75]}
    assert paces.steps_of("trial", plans, 3.0) == found
    rows = [paces.row_of("trial", plan) for plan in plans]
    assert [row["model"] for row in rows] == ["femto", "pico"], "as in most rounds"
    assert [(row["pixels"], row["frozen_blocks"]) for row in rows] == [(112, 8), (224, 8)]
    said["plan"] = [300, 300, 300]  # the machine has become twice as fast since
    found["quick"] = ["--steps", 145, "--pretrain.steps", 15]
    assert paces.steps_of("trial", plans | {"quick": ("quick",)}, 3.0) == found
    assert paces.steps_of("trial", plans, 3.0) == found  # nothing is measured again


def test_minutes_that_leave_no_steps_are_refused_and_not_kept(tmp_path, monkeypatch):
    chosen = {"model": "dinov2", "pixels": 112, "frozen_blocks": 0, "steps": 0}
    monkeypatch.setattr(paces, "dry_run", lambda words, minutes: chosen)
    monkeypatch.setattr(paces, "Results", lambda name: records.Results(name, tmp_path))
    with pytest.raises(SystemExit, match=r"trial: 0\.5 minutes leave no time for steps on this machine; give it more"):
        paces.steps_of("trial", {"lp-ft": ("lp-ft",)}, 0.5)
    assert not list(tmp_path.iterdir())


def test_a_lever_on_trial_is_pulled_when_a_run_begins_when_it_goes_on_and_when_its_pace_is_taken(tmp_path, monkeypatch):
    begun: list[list[str]] = []

    def begin(command: list[str]) -> None:
        begun.append(command)
        raise RuntimeError("begun")

    monkeypatch.setattr(records.subprocess, "Popen", begin)
    words = ("digits", "--lever", "first-skip=1", "--steps", 9)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="begun"):
            records.train_run(tmp_path, *words)
        (tmp_path / "plan.toml").touch()  # the second time there is something to go on with
    program = [sys.executable, str(records.LEVERS), "first-skip=1", "train"]
    assert begun[0] == [*program, "digits", "--steps", "9", "--out", str(tmp_path)]
    assert begun[1] == [*program, "--resume", str(tmp_path)]
    assert records.LEVERS.is_file()
    assert records.train_command("digits", "--steps", 9) == [str(records.VITRAIL), "train", "digits", "--steps", "9"]


def test_a_complete_run_is_read_and_not_trained_again(tmp_path):
    run = run_folder(tmp_path / "run", {"split": "test", "n": 4, "accuracy": 0.75, "accuracy_interval": [0.3, 0.9]})
    row = records.train_run(run, "a source that does not exist")
    assert (row["accuracy"], row["n"], row["steps"], row["number_format"]) == (0.75, 4, 30, "bfloat16")
    assert (row["seconds"], row["wall_seconds"], row["machine"]) == (12.3, 15.5, {"threads": 2})
    assert "accuracy_interval" not in row


def test_labels_have_their_accuracy_and_a_single_number_its_figures(tmp_path):
    label = {"name": "poly", "n": 10, "positives": 4, "sensitivity": 0.75, "specificity": 0.5, "f1_interval": [0, 1]}
    figures = records.figures_of(run_folder(tmp_path / "labels", {"n": 10, "per_label": [label]}))
    assert figures["per_label"][0]["accuracy"] == pytest.approx((3 + 3) / 10)
    assert "f1_interval" not in figures["per_label"][0]
    column = {"name": "probability", "n": 10, "mae": 0.2, "r2": 0.4}
    figures = records.figures_of(run_folder(tmp_path / "number", {"n": 10, "r2": 0.4, "per_column": [column]}))
    assert (figures["mae"], figures["r2"], figures["name"]) == (0.2, 0.4, "probability")


def test_spreads_and_pairs_follow_their_formulas():
    assert records.spread([0.5]) == {"mean": 0.5, "standard_deviation": None, "n": 1}
    assert records.spread([1.0, 2.0, 3.0])["standard_deviation"] == pytest.approx(1.0)
    found = records.paired_difference([0.9, 0.8, 0.7], [0.8, 0.8, 0.5])
    differences = np.array([0.1, 0.0, 0.2])
    half = 4.303 * differences.std(ddof=1) / 3**0.5
    assert found["interval"] == pytest.approx([differences.mean() - half, differences.mean() + half])
    assert records.paired_difference([1.0], [0.5])["interval"] is None


def test_seconds_until_a_step_come_from_the_rows_that_were_recorded(tmp_path):
    rows = [{"step": 10, "seconds": 0.5}, {"step": 10, "val_loss": 1.0}, {"step": 30, "seconds": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seconds = records.seconds_at(tmp_path)
    assert [seconds(step) for step in (0, 10, 20, 30)] == pytest.approx([0, 5, 15, 25])


def test_weights_of_checkpoints_stay_when_the_training_deletes_them(tmp_path):
    folder = tmp_path / "checkpoints" / "step-00000007"
    folder.mkdir(parents=True)
    for name in ("model", "optimizer", "average"):
        (folder / f"{name}.safetensors").write_bytes(name.encode())
    records.link_checkpoints(tmp_path)
    for file in folder.iterdir():
        file.unlink()
    kept = sorted((tmp_path / "history" / "step-00000007").iterdir())
    assert [(file.name, file.read_bytes()) for file in kept] == [
        ("average.safetensors", b"average"),
        ("model.safetensors", b"model"),
    ]


def test_folds_count_every_picture_once():
    folds = script("digits_folds")
    rows = [{"minutes": 1, "seed": 0, "accuracy": 1.0, "n": 300, "wall_seconds": 50 + fold} for fold in range(4)]
    rows.append({"minutes": 1, "seed": 0, "accuracy": 0.5, "n": 100, "wall_seconds": 40})
    (found,) = folds.summary(rows)
    assert found["seeds"]["mean"] == pytest.approx(1250 / 1300) and found["folds"]["mean"] == pytest.approx(0.9)
    assert found["longest_seconds"] == 53
    assert folds.summary(rows[:4])[0]["seeds"] is None


def test_solar_cells_are_told_by_one_table_a_task(tmp_path):
    elpv = script("elpv")
    (tmp_path / "labels.csv").write_text("images/a.png  1.0   mono\nimages/b.png 0.3333333333333333 poly\n")
    tables = elpv.write_tables(elpv.read_cells(tmp_path / "labels.csv"), tmp_path)
    assert tables["classification"].read_text() == (
        "path,defect,stratum\nimages/a.png,defective,1.00 mono\nimages/b.png,sound,0.33 poly\n"
    )
    assert tables["multilabel"].read_text().splitlines()[1:] == [
        "images/a.png,1,0,1.00 mono", "images/b.png,0,1,0.33 poly",
    ]  # fmt: skip
    assert tables["regression"].read_text().splitlines()[2] == "images/b.png,0.3333333333333333,0.33 poly"
    assert tables["levels"].read_text().splitlines()[1:] == [
        "images/a.png,3 defective,1.00 mono", "images/b.png,1 perhaps defective,0.33 poly",
    ]  # fmt: skip
    assert "--decisions.ordered" in elpv.way_words("levels", None)
    tasks = {way: elpv.source_words(tables, way, tmp_path)[4] for way in elpv.WAYS}
    assert (tasks.pop("labels"), tasks.pop("number")) == ("multilabel", "regression")
    assert set(tasks.values()) == {"classification"} and {way.task for way in elpv.WAYS.values()} <= elpv.FIGURES.keys()


def test_the_rows_of_the_solar_cells_are_those_that_the_bare_command_would_make():
    elpv = script("elpv")
    kept = {(row["way"], row["minutes"]) for row in elpv.Results("elpv").rows}
    assert kept and kept <= {(name, way.minutes) for name, way in elpv.WAYS.items()}


def test_a_share_of_the_peers_time_is_that_of_the_first_checkpoint_as_good():
    peer = script("fashion_mnist_peer")
    ours = peer.curve_with_end([[60, 0.80], [120, 0.91], [180, 0.90]])
    theirs = peer.curve_with_end([[300, 0.7], [600, 0.905]])
    short = {"accuracy": 0.906, "seconds": 90.0}
    assert peer.comparison(ours, short, theirs) == {
        "ours": 0.90, "peer": 0.905, "ours_reaches_it_after": 120, "share": pytest.approx(0.2),
        "short": 0.906, "short_seconds": 90.0, "short_share": pytest.approx(0.15),
    }  # fmt: skip
    assert peer.comparison(theirs, short, ours)["share"] == pytest.approx(600 / 180)
    assert peer.comparison(peer.curve_with_end([[9, 0.1]]), short, theirs)["share"] is None


def test_beside_the_peer_nothing_is_trained_whose_row_is_there(tmp_path, monkeypatch):
    peer = script("fashion_mnist_peer")
    measured = records.RESULTS / "peer-fashion-mnist-13min.json"
    kept = Path(shutil.copy(measured, tmp_path))
    monkeypatch.setattr(peer, "Results", partial(peer.Results, folder=tmp_path))
    monkeypatch.setattr(peer, "declare_torchvision", lambda: None)
    monkeypatch.setattr(peer, "peer_case", lambda *_: pytest.fail("a training was begun"))
    monkeypatch.setattr(sys, "argv", ["fashion_mnist_peer.py", "--minutes", "13"])
    peer.main()
    assert json.loads(kept.read_text()) == json.loads(measured.read_text())


def test_made_imbalance_and_its_figures_follow_their_formulas():
    imbalance = script("imbalance")
    targets = np.arange(10_000) % 10
    rows = imbalance.imbalanced_rows(targets, np.arange(10_000), 1000, 100.0, seed=3)
    counts = np.bincount(targets[rows])
    assert sorted(counts, reverse=True) == [round(1000 * 100 ** (-k / 9)) for k in range(10)]
    figures = imbalance.figures(np.array([0, 0, 1, 0]), np.array([0, 0, 1, 1]), np.array([90, 10]))
    assert (figures["balanced_accuracy"], figures["accuracy"]) == pytest.approx((0.75, 0.9 + 0.1 * 0.5))
    assert figures["rarest_recall"] == 0.5


def test_few_digits_are_stratified_and_tested_on_the_same_fifth():
    transfer = script("transfer")
    targets = np.repeat(np.arange(10), 180)
    tests = []
    for count in (100, 500, 1440):
        train, test = transfer.few(targets, count, seed=2)
        assert len(train) == count and len(np.intersect1d(train, test)) == 0
        assert set(np.bincount(targets[train])) == {count // 10} and set(np.bincount(targets[test])) == {36}
        tests.append(test)
    assert all(np.array_equal(test, tests[0]) for test in tests)


def test_of_transfers_nothing_is_trained_whose_row_is_there(tmp_path, monkeypatch, capsys):
    transfer = script("transfer")
    measured = records.RESULTS / "transfer.json"
    kept = Path(shutil.copy(measured, tmp_path))
    monkeypatch.setattr(transfer, "Results", partial(transfer.Results, folder=tmp_path))
    for name in ("weights_of", "steps_of", "train_run", "source_of"):
        monkeypatch.setattr(transfer, name, lambda *_, name=name: pytest.fail(f"{name} was asked"))
    monkeypatch.setattr(sys, "argv", ["transfer.py", str(tmp_path), str(tmp_path)])
    transfer.main()
    rows = json.loads(measured.read_text())["rows"]
    assert json.loads(kept.read_text())["rows"] == rows
    assert len(capsys.readouterr().out.splitlines()) == len(rows)


def test_transfers_are_summed_up_in_the_order_of_starts_data_and_ways():
    transfer = script("transfer")
    rows = [
        {"start": start, "data": "digits-100", "way": way, "seed": seed, "accuracy": 0.5 + seed / 10}
        for start in ("dinov2", "fashion")
        for way in ("linear", "knn")
        for seed in (0, 1)
    ]
    found = transfer.summary(rows)
    assert [(one["start"], one["way"]) for one in found] == [
        ("fashion", "knn"), ("fashion", "linear"), ("dinov2", "knn"), ("dinov2", "linear"),
    ]  # fmt: skip
    assert found[0]["accuracy"]["mean"] == pytest.approx(0.55) and found[0]["accuracy"]["n"] == 2


def test_the_page_of_figures_has_a_row_for_each_result_and_ends_with_the_commands_of_what_is_missing(tmp_path):
    page = script("table_of_records", "docs").page
    assert page(tmp_path).startswith("No finished results yet: ") and page(tmp_path).count("`python benchmarks/") == 17
    folds = {"mean": 0.988, "standard_deviation": 0.004, "n": 5}
    summary = [{"minutes": 0.75, "folds": folds, "seeds": None, "longest_seconds": 55.4}]
    machine = {"cpu": "Some CPU", "threads": 2, "versions": {"torch": "9.9.9"}}
    rows = [{"seed": 0, "fold": fold, "number_format": "bfloat16", "machine": machine} for fold in (0, 1)]
    (tmp_path / "digits-5-folds.json").write_text(json.dumps({"summary": summary, "rows": rows}))
    lines = page(tmp_path).splitlines()
    assert "| 0.75 | 98.80% ± 0.40% | 5 | 55 s |" in lines
    assert lines[3] == (
        "Processor Some CPU, 2 threads, bfloat16, torch 9.9.9, seed 0, folds 0, 1. "
        "± is the standard deviation over folds, of all seeds together."
    )
    assert [line for line in lines if line.startswith("## ")] == ["## Digits in five folds"]
    assert lines[-1].count("`python benchmarks/") == 16 and "digits_folds.py" not in lines[-1]


def test_a_results_file_without_its_processor_is_told_and_machines_may_be_words_or_facts():
    conditions = script("table_of_records", "docs").conditions
    assert conditions([{"rows": [{"seed": 1}]}]) == "The results file does not name the processor, seed 1."
    both = [{"rows": [{"machine": "One CPU"}]}, {"machine": {"processor": "Another CPU", "torch": "9.9.9"}}]
    assert conditions(both) == "Processor Another CPU and One CPU, torch 9.9.9."


def test_exported_files_stand_beside_pytorch_with_their_ratio_and_their_agreement(tmp_path):
    page = script("table_of_records", "docs").page
    agreed = {"pictures": 500, "same": 0.998, "largest_difference": 0.00312, "pictures_per_second": {"int8 file": 51}}
    found = {
        "machine": {"processor": "Some CPU", "threads": 2},
        "pictures_per_second": {"ti": {"PyTorch float32": 40.0, "ONNX int8": 90.0}},
        "agreement": {"pictures": "drawn", "onnx int8": agreed},
    }
    (tmp_path / "exporting-avx2.json").write_text(json.dumps(found))
    lines = page(tmp_path).splitlines()
    assert "| Some CPU, 2 threads | PyTorch float32 | ONNX int8 |" in lines
    assert "| ti | 40.0 (1.00) | 90.0 (2.25) |" in lines
    assert "| onnx int8 | 500 | 99.80% | 0.0031 | int8 file 51.0 |" in lines


def test_files_to_csv_are_told_by_way_and_size_with_what_is_wanted(tmp_path):
    speed = script("records_of_speed", "docs")
    rows = [
        {"files": "640x427", "way": way, "count": 2000, "seconds": seconds}
        for way, each in {"vitrail float32": (10, 30, 20), "loader float32": (50, 40), "timm float32": (None,)}.items()
        for seconds in each
    ]
    rows.append({"files": "2560x1708", "way": "loader float32", "count": 2000, "seconds": 100})
    compared = {"640x427": {"best, float32": {"times": 2.25, "wanted": 1.15, "met": True}}, "2560x1708": {}}
    (tmp_path / "end-to-end.json").write_text(json.dumps({"rows": rows, "compared": compared}))
    lines = speed.files_to_csv(tmp_path)
    assert lines[2:5] == [
        "| 640x427 | vitrail float32 | 3 | 20.0 | 100 |",
        "| 640x427 | loader float32 | 2 | 45.0 | 44 |",
        "| 2560x1708 | loader float32 | 1 | 100.0 | 20 |",
    ]
    assert lines[-1] == "| 640x427 | best, float32 | 2.25 | 1.15 | met |"


def test_starts_memory_and_levers_of_speed_are_read_from_their_files_and_left_out_without_them(tmp_path):
    speed = script("records_of_speed", "docs")
    for each in (speed.files_to_csv, speed.cold_start, speed.memory_of_steps, speed.levers):
        assert each(tmp_path) == []
    seconds = {"cpu_seconds": 1.55, "fastest": 1.4, "slowest": 1.6}
    cold = {**seconds, "goal": 3.5, "onnx": {**seconds, "goal": 1.2}, "parts": {"import torch": 0.8123}}
    (tmp_path / "cold-start.json").write_text(json.dumps(cold))
    lines = speed.cold_start(tmp_path)
    assert "| by torch | 1.55 | 1.40 | 1.60 | 3.5 | met |" in lines
    assert "| `--engine onnx` | 1.55 | 1.40 | 1.60 | 1.2 | missed |" in lines and "| import torch | 0.812 |" in lines
    rows = [{"format": "bfloat16", "way": way, "memory": held} for way, held in (("timm", 2e9), ("vitrail", 1e9))]
    compared = {"bfloat16": {"as they come": 0.5}}
    (tmp_path / "peers-memory.json").write_text(json.dumps({"rows": rows, "compared": compared}))
    assert speed.memory_of_steps(tmp_path)[2:4] == ["| timm | 2,000 |", "| vitrail | 1,000 |"]
    assert speed.memory_of_steps(tmp_path)[-1] == "| as they come | 0.50 |"
    lever = {"lever": "one kernel", "model": "ti", "batch": 8, "kept": False, "used_ms": 2.0, "unused_ms": 3.0}
    (tmp_path / "levers-of-speed.json").write_text(json.dumps({"rows": [{**lever, "times": 1.5, "spread": 0.04}]}))
    assert speed.levers(tmp_path)[-1] == "| one kernel | ti | 8 | 3 | 2 | 1.500 | 4% | no |"


def test_a_results_file_does_not_name_the_folders_of_a_machine(tmp_path):
    results = records.Results("some", tmp_path)
    results.row({"seed": 0}, lambda: {"machine": {"command": "vitrail train digits --out /home/me/runs/first"}})
    assert json.loads((tmp_path / "some.json").read_text())["rows"][0]["machine"]["command"] == (
        "vitrail train digits --out first"
    )
