"""What a message says of a file that is not complete, and that a hostile one costs no time."""

from __future__ import annotations

import time

import pytest
import torch

from vitrail.checkpoints import layouts
from vitrail.checkpoints.families import vit_pytorch
from vitrail.checkpoints.validate import check_complete, check_finite, count_blocks, nearest_name_hint
from vitrail.errors import DamagedFileError


def test_a_number_too_large_for_the_models_own_format_is_not_finite() -> None:
    check_finite({"a": torch.tensor([1e38], dtype=torch.float64), "b": torch.ones(2).half()}, "f.pt")
    with pytest.raises(DamagedFileError, match=r"f\.pt: .* 1 of the 2 in a are NaN or infinite"):
        check_finite({"a": torch.tensor([1.0, 1e300], dtype=torch.float64)}, "f.pt")


def test_numbers_that_are_not_finite_are_only_noted_where_that_is_allowed() -> None:
    tensors = {"a": torch.tensor([1.0, torch.nan]), "b": torch.ones(2), "c": torch.tensor([torch.inf])}
    notes = check_finite(tensors, "f.pt", allow_nonfinite=True)
    assert [note.split(",")[0] for note in notes] == [
        "1 of the 2 in a are NaN or infinite",
        "1 of the 1 in c are NaN or infinite",
    ]
    with pytest.raises(DamagedFileError, match=r"vitrail inspect --allow-nonfinite"):
        check_finite(tensors, "f.pt")


def test_the_nearest_name_is_sought_among_a_thousand_short_ones() -> None:
    assert nearest_name_hint("cls_token", ["pos_embed", "cls_tokens"]) == " (nearest name in the file: cls_tokens)"
    assert nearest_name_hint("cls_token", ["x"] * 1000 + ["cls_tokens"]) == ""
    assert nearest_name_hint("a" * 101, ["a" * 101]) == ""


def test_a_refusal_of_many_names_costs_little_time() -> None:
    expected = {f"blocks.{i}.attn.qkv.weight": [1] for i in range(3000)}
    tensors = {f"blocks.{i}.attn.qkv.weigth".rjust(100, "x"): torch.ones(1) for i in range(3000)}
    start = time.process_time()
    with pytest.raises(DamagedFileError, match=r"3000 missing: .* and 2996 more; 3000 without a rule"):
        check_complete(tensors, expected, "timm", "f.pt")
    assert time.process_time() - start < 2


@pytest.mark.parametrize("number", ["256", "999999999999", "9" * 5000])
def test_nobody_counts_up_to_the_number_in_a_name(number: str) -> None:
    with pytest.raises(DamagedFileError, match=r"at most 256 blocks, vit\.0 to vit\.255\. It names vit\.") as refused:
        count_blocks({f"vit.{number}.a": torch.zeros(1)}, "vit")
    assert len(str(refused.value)) < 150
    assert count_blocks({"vit.255.a": torch.zeros(1)}, "vit") == 256


def test_a_tall_matrix_is_not_compared_with_an_identity_of_its_height() -> None:
    block = "transformer.layers.0.0"
    tensors = {f"{block}.to_qkv.weight": torch.zeros(3 * 10**6, 1), f"{block}.to_out.0.weight": torch.zeros(1, 1)}
    with pytest.raises(ValueError, match=r"does not say heads"):
        vit_pytorch._read_heads(vit_pytorch.VIT_NAMES, tensors, layouts.LayoutHints(), 1)
