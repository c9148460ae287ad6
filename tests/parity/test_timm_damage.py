"""Files of timm with one tensor dropped, renamed, reshaped or doubled: an error that names it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from in_memory import load_from_tensors
from parity import timm_models
from parity.negative import refuses_every_damage
from parity.timm_models import reference
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.checkpoints.load import LoadedModel

CASES = ("class", "attention pool", "registers", "distilled", "parallel", "DINOv3 with gates", "NaFlex SigLIP", "EVA")
SIZE: dict[str, Any] = {"embed_dim": 16, "num_heads": 2, "num_classes": 3, "mlp_ratio": 3}
DECIDES = {"parallel": ("norm_pre.weight",)}
"""Tensors without which the file is of another kind, in which another tensor is missing."""


@pytest.mark.first(1)
@pytest.mark.parametrize("case", CASES)
def test_every_damage_is_refused_by_name(case: str) -> None:
    model = reference(case, **SIZE)
    architecture, changes = timm_models.CASES[case]
    more = {} if case.startswith("NaFlex") else {"img_size": 16}
    arguments = {**changes, **SIZE, **more, "num_heads": 2}
    foreign = {"architecture": architecture, "global_pool": model.global_pool, "model_args": arguments}

    def read(tensors: dict[str, Tensor]) -> LoadedModel:
        return load_from_tensors(tensors, "file", hints=LayoutHints(foreign_config=foreign))

    assert refuses_every_damage(model.state_dict(), read, decides=DECIDES.get(case, ())) > 100


def test_a_gate_of_its_own_too() -> None:
    model = timm_models.split_gate(**SIZE)
    assert refuses_every_damage(
        model.state_dict(), lambda tensors: load_from_tensors(tensors, "file", hints=LayoutHints(heads=2))
    )
