"""The record script for CIFAR-10, on thirty drawn pictures in the published format."""

from __future__ import annotations

import sys

import pytest

from cifar_files import files10, write
from scripts import ROOT, script
from vitrail.model.flops import training_flops
from vitrail.train.planning.planner import MIN_STEPS
from vitrail.train.run_folder import RunFolder

record = script("cifar10_record")
SMALL = ("--model", "vit_mu_patch8_32", "--recipe.batch_size", "4", "--compute.threads", "1")


@pytest.mark.wide
def test_pictures_held_out_are_told_of_and_no_row_is_kept(tmp_path, monkeypatch, capfd):
    write(tmp_path / "cifar-10-batches-py", files10())
    words = ["cifar10_record.py", tmp_path, "--hold-out", "--seeds", 0, "--folder", tmp_path, "--name", "none"]
    words += ["--minutes", 0.001]
    monkeypatch.setattr(sys, "argv", [str(word) for word in (*words, "--train", *SMALL)])
    record.main()
    assert "of the pictures held out" in capfd.readouterr().out
    assert not (ROOT / "benchmarks" / "results" / "none.json").exists()
    plan = RunFolder(tmp_path / "none-held-out-seed0").read_plan()
    assert plan.data.val_fraction == record.HELD_OUT and plan.recipe.steps == MIN_STEPS


@pytest.mark.wide
def test_the_operations_of_a_record_count_the_patches_that_early_steps_leave_out(tmp_path):
    write(tmp_path / "cifar-10-batches-py", files10())
    early = ("--recipe.patch_keep_rate", "0.5", "--recipe.patch_keep_until", "0.75")
    words = ("cifar10", "--data-root", tmp_path, "--data.val_fraction", 0, *SMALL, "--steps", 4, *early)
    row = record.train_once(tmp_path / "run", *words)
    plan = RunFolder(tmp_path / "run").read_plan()
    half, whole = (training_flops(plan.model, patches) for patches in (8, 16))
    assert half < whole
    assert record.operations(plan) == 4 * (3 * half + whole)
    assert row["accuracy"] in {right / 6 for right in range(7)} and "petaflop" in row
