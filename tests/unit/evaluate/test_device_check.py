"""A device that computes otherwise than the CPU is noticed, named, and used only where it is asked for."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings

import pytest
import torch
import torch.nn.functional as F

from vitrail import runtime
from vitrail.errors import MachineWarning
from vitrail.evaluate import device_check
from vitrail.evaluate.device_check import (
    check_again,
    choose_checked_runtime,
    describe_fault,
    find_device_fault,
    measure_device,
)
from vitrail.runtime import RuntimeSettings

FUSED = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vitrail" / "device-checks.json"


def install_fused_kernel(monkeypatch, change):
    """A fused kernel whose output is changed where `change` says so."""
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **options: change(FUSED(q, k, v, **options)))


def scale_bfloat16(y):
    return y * 1.03 if y.dtype == torch.bfloat16 else y


def scale_float32(y):
    return y * 1.001 if y.dtype == torch.float32 else y


def scale_gradient(y):
    return y * 1.03 - y.detach() * 0.03


def spoil_few_queries(y):
    """As a kernel that reads beyond its memory where one token asks many."""
    return y * torch.nan if y.shape[2] == 1 else y


def test_this_processor_computes_rightly_with_room_to_spare():
    differences = measure_device("cpu")
    assert describe_fault(differences) == ""
    assert all(each.difference < each.allowed / 2 for each in differences)
    compared = {(each.kernel, each.precision) for each in differences}
    for path in ("fused", "open"):
        for where in ("", " in a tiny model"):
            for what in ("outputs", "outputs in training", "gradients"):
                for precision in ("float32", "bfloat16"):
                    assert (f"{path} attention{where}, its {what}", precision) in compared


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (scale_bfloat16, r"^fused attention, its .* in bfloat16 is wrong by 0\.03\d? of its size, .* 0\.016$"),
        (scale_float32, r"^fused attention.*, its .* in float32 is wrong by 0\.001\d? of its size, .* 1\.5e-05$"),
        (scale_gradient, r"^fused attention, its gradients in float32 is wrong by 0\.03 "),
        (spoil_few_queries, r"^fused attention, its outputs in float32 is not finite or fails of its size"),
    ],
    ids=["bfloat16", "float32", "gradients", "one query"],
)
def test_a_wrong_fused_kernel_is_named_with_its_format_and_the_size_of_the_difference(monkeypatch, change, words):
    install_fused_kernel(monkeypatch, change)
    differences = measure_device("cpu")
    assert not any(each.is_wrong for each in differences if each.kernel.startswith("open"))
    assert re.search(words, describe_fault(differences))


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that torch finds, which is this CPU; it is there wherever a choice asks for it."""

    def choose(settings, num_processes=1):
        found = real(dataclasses.replace(settings, device="cpu"), num_processes)
        if settings.device == "cpu":
            return found
        return dataclasses.replace(found, device="mps", reasons={**found.reasons, "device": "Apple's GPU is here"})

    real, measure = runtime.choose, device_check.measure_device
    calls: list[str] = []

    def measure_here(device: str):
        calls.append(device)
        return measure("cpu")

    monkeypatch.setattr(device_check, "ATTENTION_SHAPES", device_check.ATTENTION_SHAPES[:1])
    monkeypatch.setattr(runtime, "choose", choose)
    monkeypatch.setattr(device_check, "measure_device", measure_here)
    return calls


def test_a_gpu_that_passes_is_chosen_and_checked_once(gpu, cache):
    for _ in range(2):
        machine = choose_checked_runtime(RuntimeSettings())
        assert machine.device == "mps"
        assert machine.reasons["device"] == "Apple's GPU is here, and computes as the CPU does"
    assert gpu == ["mps"]
    ((surroundings, fault),) = json.loads(cache.read_text()).items()
    assert fault == "" and surroundings.startswith(f"Apple's GPU (mps); torch {torch.__version__}; ")


def test_a_gpu_that_fails_is_replaced_by_the_cpu_and_the_sentence_says_how_to_force_it(gpu, monkeypatch):
    install_fused_kernel(monkeypatch, scale_bfloat16)
    words = (
        r"Apple's GPU \(mps\) computes wrongly with torch \S+: fused attention, its .* in bfloat16 is wrong by "
        r"0\.03\d? of its size.*The CPU is used instead; --device mps uses it all the same\."
    )
    for _ in range(2):
        with pytest.warns(MachineWarning, match=words):
            machine = choose_checked_runtime(RuntimeSettings())
        assert machine.device == "cpu"
        assert machine.reasons["device"].startswith("Apple's GPU (mps) computes wrongly: fused attention, its ")
    assert gpu == ["mps"]


def test_a_gpu_that_fails_and_is_asked_for_is_used_with_a_warning(gpu, monkeypatch):
    install_fused_kernel(monkeypatch, scale_bfloat16)
    with pytest.warns(MachineWarning, match=r"It is used because it was asked for, and the answers may be wrong\."):
        assert choose_checked_runtime(RuntimeSettings(device="mps")).device == "mps"


def test_the_cpu_is_not_checked_before_use(gpu):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_checked_runtime(RuntimeSettings(device="cpu")).device == "cpu"
    assert gpu == []


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}'])
def test_a_damaged_or_foreign_cache_is_measured_again(gpu, cache, content):
    cache.parent.mkdir()
    cache.write_text(content)
    assert find_device_fault("mps") == ""
    assert gpu == ["mps"]


def test_without_a_folder_for_the_cache_the_check_is_made_each_time(gpu, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert find_device_fault("mps") == find_device_fault("mps") == ""
    assert gpu == ["mps", "mps"]


def test_a_new_check_replaces_an_old_verdict(gpu, monkeypatch):
    with monkeypatch.context() as patch:
        install_fused_kernel(patch, scale_bfloat16)
        assert find_device_fault("mps")
    assert find_device_fault("mps")
    check_again("mps")
    assert find_device_fault("mps") == ""


def test_a_device_that_has_no_products_of_a_format_is_wrong_only_where_it_would_be_used(monkeypatch):
    def refuse(device, precision, path):
        if precision == "bfloat16":
            raise TypeError("BFloat16 is not supported on MPS")
        return iter([(", its outputs", 0.0)])

    monkeypatch.setattr(device_check, "_attention_differences", refuse)
    monkeypatch.setattr(device_check, "_model_differences", refuse)
    assert describe_fault(measure_device("mps")) == ""
    assert "fused attention in bfloat16 is not finite or fails" in describe_fault(measure_device("cpu"))
