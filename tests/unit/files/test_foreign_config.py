"""Sizes in somebody else's config.json are bounded, and nothing in it is a reason to run code."""

from __future__ import annotations

import json
import re

import pytest

from vitrail.files.strict_json import FIELD_RANGES, read_foreign_config

REAL = {
    "transformers ViT": {"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "layer_norm_eps": 1e-12},
    "transformers DINOv3": {"model_type": "dinov3_vit", "rope_theta": 100.0, "num_register_tokens": 4, "mlp_ratio": 4},
    "transformers DINOv2": {"model_type": "dinov2", "layerscale_value": 1.0, "image_size": 518, "mlp_ratio": 4},
    "timm": {"architecture": "vit_base_patch16_224", "num_classes": 0, "model_args": {"img_size": [256, 192]}},
    "OpenCLIP": {"model_cfg": {"embed_dim": 512, "vision_cfg": {"layers": 12, "width": 768, "patch_size": 16}}},
    "half said": {"image_size": None, "num_labels": 21843},
}


def write(path, content):
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("name", REAL)
def test_real_configurations_pass_as_they_are(tmp_path, name):
    assert read_foreign_config(write(tmp_path / "config.json", REAL[name])) == (REAL[name], (), "")


def test_fields_that_ask_for_code_are_left_out_with_a_note(tmp_path):
    asks = {"auto_map": {"AutoModel": "x.Y"}, "trust_remote_code": True, "chat_template": "{{ x }}"}
    found = read_foreign_config(write(tmp_path / "config.json", {"model_type": "vit", **asks}))
    assert found.fields == {"model_type": "vit"}
    (note,) = found.notes
    assert note.endswith(
        "config.json asks for code (auto_map, trust_remote_code, chat_template); "
        "that is ignored, no code of a checkpoint is ever run"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"num_hidden_layers": 10**9}, r"num_hidden_layers must be a number from 1 to 256\. Got 1000000000\."),
        ({"patch_size": 0}, r"patch_size must be a number from 1 to 1,024\. Got 0\."),
        ({"patch_size": [16, -16]}, r"patch_size must be a number from 1 to 1,024\. Got -16\."),
        ({"hidden_size": [768, 768]}, r"hidden_size must be a number from 1 to 65,536\. Got \[768, 768\]\."),
        ({"image_size": []}, r"image_size must be a number from 1 to 16,384\. Got \[\]\."),
        ({"image_size": [[1]]}, r"image_size must be a number from 1 to 16,384\. Got \[1\]\."),
        ({"hidden_size": "768"}, r"hidden_size must be a number from 1 to 65,536\. Got '768'\."),
        ({"num_attention_heads": True}, r"num_attention_heads must be a number from 1 to 1,024\. Got True\."),
        ({"layer_norm_eps": -1e-6}, r"layer_norm_eps must be a number from 0 to 1\. Got -1e-06\."),
        ({"vision_config": {"a": {"image_size": 10**6}}}, r"vision_config\.a\.image_size must be a number from 1 to"),
    ],
)
def test_a_size_outside_its_range_is_a_fault_with_field_and_range(tmp_path, content, words):
    assert re.search(rf"config\.json: {words}", read_foreign_config(write(tmp_path / "config.json", content)).fault)


def test_every_field_has_a_range_that_can_be_met():
    assert all(low < high for low, high in FIELD_RANGES.values())
