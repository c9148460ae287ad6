"""What shapes tell, and the words when they do not agree."""

from __future__ import annotations

import pytest
import torch

from vitrail.checkpoints.validate import (
    count_blocks,
    find_square_side,
    majority_length,
    reconcile,
    require_argument,
    require_tensor,
)
from vitrail.errors import DamagedFileError, UsageError


def test_the_majority_decides_and_one_damaged_tensor_is_outvoted() -> None:
    tensors = {f"blocks.{i}.w": torch.zeros(8) for i in range(3)} | {"blocks.3.w": torch.zeros(7)}
    assert majority_length(tensors, "width", ("blocks.{i}.w", 0)) == 8


def test_a_draw_is_an_error_that_names_both_sides() -> None:
    tensors = {"head.weight": torch.zeros(3, 8), "head.bias": torch.zeros(4)}
    with pytest.raises(DamagedFileError, match=r"disagree about the outputs: head\.weight says 3, head\.bias says 4"):
        majority_length(tensors, "outputs", ("head.weight", 0), ("head.bias", 0))


def test_a_missing_tensor_is_named_with_the_nearest_one() -> None:
    tensors = {"norm.weigth": torch.zeros(8)}
    with pytest.raises(DamagedFileError, match=r"no tensor norm\.weight \(nearest name in the file: norm\.weigth\)"):
        majority_length(tensors, "width", ("norm.weight", 0))
    with pytest.raises(DamagedFileError, match=r"no tensor blocks\.0\.norm\.weight, which tells the width"):
        majority_length({}, "width", ("blocks.{i}.norm.{p}", 0))
    with pytest.raises(DamagedFileError, match=r"no tensor norm\.weight \(nearest name in the file: norm\.weigth\)"):
        require_tensor(tensors, "norm.weight", axes=1)
    with pytest.raises(DamagedFileError, match=r"norm\.weigth must have 2 axes\. Got the shape \[8\]"):
        require_tensor(tensors, "norm.weigth", axes=2)


def test_blocks_are_counted_by_the_highest_number() -> None:
    assert (
        count_blocks({"vit.0.a": torch.zeros(1), "vit.11.a": torch.zeros(1), "xvit.20.a": torch.zeros(1)}, "vit") == 12
    )
    assert count_blocks({}, "vit") == 0


def test_a_square_is_found_or_the_size_is_asked_for() -> None:
    assert find_square_side((196, 197), "table") == 14
    with pytest.raises(
        UsageError, match=r"table has rows for 15 or 17 patches, which fill no square\. Pass image_size"
    ):
        find_square_side((15, 17), "table")


def test_arguments_are_asked_for_and_compared() -> None:
    assert require_argument(3, "heads", "explained", "say it") == 3 and reconcile(None, 4, "heads", "x") == 4
    with pytest.raises(UsageError, match=r"layout explained does not say heads\. Pass heads=; say it\."):
        require_argument(None, "heads", "explained", "say it")
    with pytest.raises(UsageError, match=r"heads=3 contradicts the file: x says 4\. Leave heads= out\."):
        reconcile(3, 4, "heads", "x")
