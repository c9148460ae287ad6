"""Convert a model to the parts that timm's modules have; the function stays exactly the same.

A missing bias becomes zeros, the position of a prefix token is added to that token, a gate is packed with its value or
split from it. A part that timm has no place for is an error that names it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...errors import UsageError
from ...model.config import T2T_PATCHES, ViTConfig
from .plain_export import ConfigAndState, StateDict, add_key_bias, pack_gate, split_gate

BLOCK_PREFIX = "encoder.blocks.{i}."


def export_timm(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For `VisionTransformer` with plain or packed MLPs.

    Raises:
        UsageError: timm has no such part; the message names all of them.
    """
    return _match_block_biases(*pack_gate(*prepare_for_timm(config, state)))


def export_timm_split(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For `VisionTransformer` with the gate as a separate matrix.

    Raises:
        UsageError: as `export_timm`.
    """
    return _match_block_biases(*split_gate(*prepare_for_timm(config, state)))


def export_timm_parallel(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For `VisionTransformer` with parallel attention and MLP, which share one LayerScale.

    Raises:
        UsageError: as `export_timm`, or the two LayerScales differ.
    """
    config, state = prepare_for_timm(config, state)
    for i in range(config.depth if config.layer_scale is not None else 0):
        first, second = (state[f"{BLOCK_PREFIX}scale{n}".format(i=i)] for n in (1, 2))
        if not torch.equal(first, second):
            raise UsageError(
                f"timm's parallel block has one LayerScale for both branches, and in block {i} the two differ. "
                "Save the model as a bundle instead."
            )
    return add_output_biases(*add_key_bias(config, state))


def prepare_for_timm(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Convert what all of timm's modules share: learned positions of patches, biases of head and patch projection.

    Raises:
        UsageError: timm has no such part; the message names all of them.
    """
    if missing := list_timm_unsupported(config):
        raise UsageError(f"timm has no place for {', nor for '.join(missing)}. Save the model as a bundle instead.")
    if config.positions != "none":
        config = replace(config, positions="learned", class_position=config.class_position or not config.class_token)
    config, state = _convert_prefix_positions(config, dict(state))
    if not config.patch_bias and not config.pre_norm:
        config, state = replace(config, patch_bias=True), _add_zeros(state, config, "tokens.patches.bias", config.width)
    if not config.head_bias and config.outputs:
        for head in ("head.linear.bias", "head.distillation.bias")[: 1 + config.distillation_head]:
            state = _add_zeros(state, config, head, config.outputs)
    patches = "conv" if config.patches == "linear" else config.patches
    return replace(config, head_bias=True, patches=patches, resample="bicubic-antialias"), state


def list_timm_unsupported(config: ViTConfig) -> list[str]:
    """Names of the model's parts that no module of timm has."""
    faults = {
        f'patches="{config.patches}"': config.patches in T2T_PATCHES,
        "patch_norms=true": config.patch_norms,
        "patch_bias=true with pre_norm=true": config.patch_bias and config.pre_norm,
        f"relative={config.relative}": config.relative > 0,
        f'rotary="{config.rotary}"': config.rotary == "from-one",
        f'pool="{config.pool}"': config.pool == "class+mean",
        f"pool_blocks={config.pool_blocks}": config.pool_blocks > 1,
        f'head="{config.head}"': config.head != "linear",
        f"head_width={config.head_width}": config.head_dim * config.heads != config.width,
        f"qk_scale={config.qk_scale}": config.qk_scale not in (None, config.head_dim**-0.5),
        "parallel=true with a gated MLP": config.parallel and config.mlp != "plain",
        "registers beside a distillation head": config.distillation_head and config.registers > 0,
        'positions="none" with a distillation head': config.distillation_head and config.positions == "none",
    }
    return [words for words, there in faults.items() if there]


def _match_block_biases(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Biases as `VisionTransformer` has them: of queries, keys and values together, of both branches or of none."""
    config, state = add_key_bias(config, state)
    return (config, state) if config.out_bias == config.mlp_bias else add_output_biases(config, state)


def add_output_biases(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Add biases of zeros where the attention's output or the MLP has none."""
    first = config.mlp_width * (2 if config.mlp == "gated-packed" else 1)
    widths = {"attention.out": config.width, "mlp.gate": first, "mlp.fc1": first, "mlp.fc2": config.width}
    for name, width in widths.items():
        if name != "mlp.gate" or config.mlp == "gated":
            state = _add_zeros(state, config, f"{BLOCK_PREFIX}{name}.bias", width)
    return replace(config, out_bias=True, mlp_bias=True), state


def _add_zeros(state: StateDict, config: ViTConfig, name: str, length: int) -> StateDict:
    """The state with zeros under a name (in every block, if it has `{i}`) where there is no tensor yet."""
    like = state["tokens.patches.weight"]
    names = [name.format(i=i) for i in range(config.depth)] if "{i}" in name else [name]
    return {**{each: like.new_zeros(length) for each in names if each not in state}, **state}


def _convert_prefix_positions(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Convert positions of class, distillation and register tokens to those of timm's modules.

    A class token without other prefix tokens keeps its row. DeiT's two heads need rows for both tokens. Otherwise the
    rows are added to their tokens, and a distillation token without its own head becomes one more register.
    """
    if config.distillation_head:
        return _add_prefix_rows(config, state)
    if not (config.registers or config.distillation_token):
        return config, state
    if config.positions != "none" and config.class_position and config.class_token:
        config, state = _add_rows_to_tokens(config, state)
    if not config.distillation_token:
        return config, state
    tokens = [state.pop(name) for name in ("tokens.distillation", "tokens.registers") if name in state]
    state["tokens.registers"] = torch.cat(tokens, dim=1)
    return replace(config, distillation_token=False, registers=config.registers + 1), state


def _add_rows_to_tokens(config: ViTConfig, state: StateDict) -> ConfigAndState:
    table, first = state["positions.table"], config.table_prefix
    for row, name in enumerate(("tokens.cls", "tokens.distillation")[:first]):
        state[name] = state[name] + table[row]
    state["positions.table"] = table[first:].clone()
    return replace(config, class_position=False), state


def _add_prefix_rows(config: ViTConfig, state: StateDict) -> ConfigAndState:
    if config.positions == "none" or config.class_position:
        return config, state
    table = state["positions.table"]
    state["positions.table"] = torch.cat([table.new_zeros(2, config.width), table])
    return replace(config, class_position=True), state
