"""`vitrail bench`, `inspect --cost` and `train --dry-run --devices`, as a person would type them."""

from __future__ import annotations

import json
import re

import pytest

TINY_BENCH = ("--batches", "1,2", "--rounds", 1, "--threads", 1, "--number-format", "float32")


def test_a_run_is_measured_and_the_result_kept(vitrail, run_folder, tmp_path):
    answer = vitrail("bench", run_folder, "--only", "inference", *TINY_BENCH, "--to", tmp_path / "bench.json")
    assert answer.code == 0, answer.err
    assert re.search(r"(?m)^inference +1 +[\d,.]+ ", answer.out) and "of limit" in answer.out
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert kept["model"] == str(run_folder) and [row["batch"] for row in kept["rows"]] == [1, 2]
    assert kept["command"].startswith("vitrail")


@pytest.mark.wide
def test_a_result_for_machines_is_json(vitrail):
    answer = vitrail("bench", "vit_mu_patch8_16", "--only", "training,predicting", *TINY_BENCH, "--json")
    assert answer.code == 0, answer.err
    assert [row["what"] for row in json.loads(answer.out)["rows"]] == ["training", "training", "predicting"]


def test_what_cannot_be_measured_is_a_sentence(vitrail):
    answer = vitrail("bench", "vit_mu_patch8_16", "--only", "speed")
    assert (answer.code, answer.err.count("\n")) == (2, 1) and "Got 'speed'" in answer.err


def test_the_cost_of_a_training_elsewhere_is_told(vitrail):
    words = ("--cost", "--on", "h100", "--devices", 8, "--batch", 2048, "--pictures", 1281167, "--epochs", 90)
    answer = vitrail("inspect", "vit_small_patch16_224", *words)
    assert answer.code == 0, answer.err
    assert "Cost of vit_small_patch16_224 on 8 x NVIDIA H100 SXM 80 GB in bfloat16, adamw" in answer.out
    assert "90 epochs of 1,281,167 pictures: " in answer.out and "a copy on each (DDP)" in answer.out
    told = json.loads(vitrail("inspect", "vit_small_patch16_224", *words, "--json").out)
    assert told["cost"]["run"]["epochs"] == 90 and told["cost"]["engine"] == "ddp"


def test_the_cost_here_is_measured(vitrail):
    answer = vitrail("inspect", "vit_mu_patch8_16", "--cost", "--batch", 4, "--number-format", "float32", "--json")
    told = json.loads(answer.out)["cost"]
    assert told["on"].startswith("this machine") and told["training_rate"] > 1 and told["assumed"] == []


def test_words_about_a_cost_that_nobody_asked_for_are_refused(vitrail):
    answer = vitrail("inspect", "vit_mu_patch8_16", "--devices", 8)
    assert answer.code == 2 and "Add --cost." in answer.err


@pytest.mark.wide
def test_a_dry_run_tells_operations_and_what_several_devices_would_take(vitrail, flowers):
    words = ("train", flowers, "--model", "vit_mu_patch8_16", "--recipe.batch_size", 4, "--minutes", 0.02, "--dry-run")
    threads = ("--compute.threads", 1, "--data.val_fraction", 0.2)
    answer = vitrail(*words, *threads, "--devices", 2)
    assert answer.code == 0, answer.err
    assert "Operations: " in answer.out and "On 2 devices like this one: " in answer.out
    told = json.loads(vitrail(*words, *threads, "--devices", 2, "--json").out)
    assert told["run_flops"] > told["training_flops"] > told["forward_flops"] and told["on_devices"]["devices"] == 2


def test_a_training_on_several_devices_is_started_otherwise(vitrail, flowers):
    answer = vitrail("train", flowers, "--devices", 2, "--steps", 1)
    assert answer.code == 2 and "torchrun --nproc-per-node 2" in answer.err
