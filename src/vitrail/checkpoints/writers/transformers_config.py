"""config.json of a model in transformers' words."""

from __future__ import annotations

from typing import Any

from ...model.config import ViTConfig
from .transformers_targets import Target, mlp_ratio

WORDS = {
    "GELU": "gelu",
    "GELUTanh": "gelu_pytorch_tanh",
    "QuickGELU": "quick_gelu",
    "ReLU": "relu",
    "LeakyReLU": "leaky_relu",
    "SiLU": "silu",
    "Mish": "mish",
    "Tanh": "tanh",
}
"""Our words for activations, and transformers'."""
PROBLEMS = {
    "classes": "single_label_classification",
    "labels": "multi_label_classification",
    "number": "regression",
}
"""Our words for tasks, and transformers'."""


def described(target: Target, config: ViTConfig, task: str, classes: tuple[str, ...]) -> dict[str, Any]:
    """The content of config.json."""
    model = {"model_type": target.model_type, **_sizes(config), **_own(target, config)}
    if target.model_type == "clip":
        model = {"model_type": "clip", "vision_config": {**model, "model_type": "clip_vision_model"}}
    return {"architectures": [target.architecture], "dtype": "float32", **model, **_answers(config, task, classes)}


def _sizes(config: ViTConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": WORDS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "image_size": _one_or_two(config.image_size),
        "patch_size": _one_or_two(config.patch),
        "num_channels": config.channels,
        "initializer_range": 0.02,
    }


def _own(target: Target, config: ViTConfig) -> dict[str, Any]:
    """What only this kind of model says."""
    mlp: dict[str, Any] = {"intermediate_size": config.mlp_width}
    match target.model_type:
        case "siglip_vision_model":
            return {**mlp, "attention_dropout": config.attention_dropout, "vision_use_head": True}
        case "clip" | "clip_vision_model":
            return {
                **mlp,
                "attention_dropout": config.attention_dropout,
                "projection_dim": config.outputs or config.width,
            }
        case "dinov3_vit":
            return {**mlp, **_dinov3(config)}
        case "dinov2" | "dinov2_with_registers":
            mlp = {"mlp_ratio": mlp_ratio(config), "use_swiglu_ffn": config.mlp != "plain", "layerscale_value": 1.0}
    registers = {"num_register_tokens": config.registers} if target.model_type == "dinov2_with_registers" else {}
    return {
        **mlp,
        **registers,
        "qkv_bias": config.qkv_bias,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": config.attention_dropout,
    }


def _dinov3(config: ViTConfig) -> dict[str, Any]:
    return {
        "num_register_tokens": config.registers,
        "use_gated_mlp": config.mlp != "plain",
        "rope_theta": 100.0,
        "query_bias": config.qkv_bias,
        "key_bias": config.qkv_bias and config.key_bias,
        "value_bias": config.qkv_bias,
        "proj_bias": config.out_bias,
        "mlp_bias": config.mlp_bias,
        "attention_dropout": config.attention_dropout,
        "layerscale_value": 1.0,
    }


def _answers(config: ViTConfig, task: str, classes: tuple[str, ...]) -> dict[str, Any]:
    """The names of the outputs; transformers counts them from this list."""
    if not config.outputs:
        return {}
    names = classes or tuple(f"LABEL_{number}" for number in range(config.outputs))
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": PROBLEMS[task],
    }


def _one_or_two(pair: tuple[int, int]) -> int | list[int]:
    return pair[0] if pair[0] == pair[1] else list(pair)
