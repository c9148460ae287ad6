"""Wrappers and prefixes that training scripts leave around a model's tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitrail.checkpoints.containers import read_tensors, unwrap
from vitrail.errors import DamagedFileError, UsageError

WEIGHT = torch.ones(2)


@pytest.mark.parametrize(
    "wrapper", ["model_ema", "state_dict_ema", "state_dict", "model_state_dict", "model", "module"]
)
def test_the_tensors_under_a_known_wrapper_are_taken_and_its_neighbours_left(wrapper: str) -> None:
    assert unwrap({"epoch": 3, wrapper: {"a": WEIGHT}}, "f.pt") == {"a": WEIGHT}


def test_averaged_weights_are_preferred_and_wrappers_may_be_nested() -> None:
    content = {"state_dict": {"a": torch.zeros(2)}, "model_ema": {"module": {"a": WEIGHT}}}
    assert unwrap(content, "f.pt") == {"a": WEIGHT}


def test_prefixes_that_every_name_has_are_taken_off() -> None:
    assert unwrap({"_orig_mod.module.a": WEIGHT, "_orig_mod.module.b": WEIGHT}, "f.pt").keys() == {"a", "b"}
    assert unwrap({"module.a": WEIGHT, "b": WEIGHT}, "f.pt").keys() == {"module.a", "b"}


def test_something_else_than_tensors_is_named() -> None:
    with pytest.raises(DamagedFileError, match=r"f\.pt must hold tensors by name, .*something else called epoch, lr\."):
        unwrap({"a": WEIGHT, "epoch": 3, "lr": 0.1}, "f.pt")


def test_a_file_of_another_ending_is_no_weights_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.safetensors or \.pt, \.pth, .* Got .*weights\.txt"):
        read_tensors(tmp_path / "weights.txt")
