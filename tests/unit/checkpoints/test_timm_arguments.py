"""Arguments of timm's classes in a config.json: what is known, and what is refused by its name."""

from __future__ import annotations

import pytest

from vitrail.checkpoints.families.timm_arguments import refuse_unknown_arguments
from vitrail.errors import UsageError


@pytest.mark.parametrize(
    ("argument", "value"), [("attn_gated", True), ("patchify_channels_last", False), ("rope_mrope_section", 8)]
)
def test_an_argument_that_makes_another_model_is_refused_by_its_name(argument: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"config\.json says {argument}={value}, an argument of timm's"):
        refuse_unknown_arguments({"architecture": "vit_tiny_patch16_224", "model_args": {argument: value}})


def test_known_arguments_rates_of_dropping_and_usual_values_pass() -> None:
    known = {"depth": 2, "img_size": [16, 24], "pos_drop_rate": 0.1, "weight_init": "jax", "num_kv_heads": 2}
    usual = {"patchify_channels_last": True, "attn_gated": False, "embed_proj_type": "linear"}
    refuse_unknown_arguments({"model_args": {**known, **usual}})
    refuse_unknown_arguments({})
    refuse_unknown_arguments({"model_args": []})
