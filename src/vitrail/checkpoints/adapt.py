"""Adapt a model that was read to another image size, other channels, another pooling or another head; build it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import UsageError
from ..formatting import format_count
from ..model.config import Pool, ViTConfig, describe_oversize
from ..model.positions import dinov3_periods, fixed_table, relative_bias_rule, resample_relative_bias, resample_table
from ..model.vit import ViT
from ..spec import ImageSpec
from .layouts import computed_tensors
from .validate import Audit

CHANNEL_POLICIES = ("sum", "mean", "tile")
ChannelPolicy = str | tuple[int, ...]
"""How a patch projection is adapted to other channels: one of CHANNEL_POLICIES, or channel numbers.

- sum: each new channel gets the sum of the file's channels, divided by the number of new ones. A grey image then gives
  the same output as the same image repeated over the file's channels.
- mean: each new channel gets the mean of the file's channels.
- tile: the file's channels, repeated in order, times the file's count / the new count.
- numbers: for each new channel the file's channel (from 0) that it gets, unchanged.
"""
PATCH_WEIGHT, POSITION_TABLE = "tokens.patches.weight", "positions.table"


@dataclass(frozen=True, kw_only=True)
class ModelDraft:
    """A model before it is built: configuration, tensors, audit and notes."""

    config: ViTConfig
    values: Mapping[str, Tensor]
    audit: Audit
    notes: tuple[str, ...] = ()
    """What was adapted, in sentences without a full stop."""

    def with_note(self, note: str) -> ModelDraft:
        """A copy with one more note."""
        return replace(self, notes=(*self.notes, note))


def adapt_image_size(draft: ModelDraft, size: tuple[int, int] | None) -> ModelDraft:
    """Change the image size: learned positions are resampled once, a fixed table is computed for the new grid.

    Raises:
        UsageError: a side is not a multiple of the patch.
    """
    config = draft.config
    if size is None or size == config.image_size:
        return draft
    new = _check_size(replace(config, image_size=size))
    draft = replace(draft, config=new)
    if config.relative_bias and new.grid != config.grid:
        draft = _resample_biases(draft, config)
    if POSITION_TABLE not in draft.values or new.grid == config.grid:
        return draft.with_note(
            f"made for pictures of {_format_size(config.image_size)} pixels, now for {_format_size(size)}"
        )
    values = dict(draft.values)
    if POSITION_TABLE in computed_tensors(config):
        del values[POSITION_TABLE]
        return replace(draft, values=values).with_note(f"positions computed anew for {_format_size(new.grid)} patches")
    table, first = values[POSITION_TABLE], config.table_prefix
    patches = resample_table(table[first:], config.grid, new.grid, config.resample)
    values[POSITION_TABLE] = torch.cat([table[:first], patches])
    grids = f"from {_format_size(config.grid)} to {_format_size(new.grid)} patches"
    return replace(draft, values=values).with_note(f"positions resampled {grids} by the rule {config.resample}")


def _resample_biases(draft: ModelDraft, old: ViTConfig) -> ModelDraft:
    """The draft with every table of relative biases for its own grid, from that of `old`."""
    values, rule = dict(draft.values), relative_bias_rule(old.resample)
    for name in [name for name in values if name.endswith(".relative_bias.table")]:
        values[name] = resample_relative_bias(values[name], old.grid, draft.config.grid, rule)
    grids = f"from {_format_size(old.grid)} to {_format_size(draft.config.grid)} patches"
    return replace(draft, values=values).with_note(f"relative biases resampled {grids} by the rule {rule}")


def adapt_channels(draft: ModelDraft, channels: int | None, policy: ChannelPolicy | None) -> ModelDraft:
    """Change the number of channels by a policy.

    Raises:
        UsageError: the number differs and no policy is given, or a policy is given that is unknown, does not fit, or
            has nothing to adapt (a list could reorder the channels).
    """
    config, old = draft.config, draft.config.channels
    if policy is None:
        if channels in (None, old):
            return draft
        raise UsageError(
            f"channels={channels} contradicts the file: its pictures have {old}. "
            'Leave channels= out, or name how to adapt it: channels_policy="sum", "mean", "tile" or a list.'
        )
    if isinstance(policy, str) and policy not in CHANNEL_POLICIES:
        raise UsageError(
            f"channels_policy must be {', '.join(CHANNEL_POLICIES)} or a list of channels. Got {policy!r}."
        )
    if channels is None:
        shown = f'"{policy}"' if isinstance(policy, str) else str(list(policy))
        raise UsageError(
            f"channels_policy={shown} adapts the file to other channels, and channels= does not say how many. "
            f"Pass channels= too; the file's pictures have {old}."
        )
    if isinstance(policy, str) and channels == old:
        raise UsageError(
            f'channels_policy="{policy}" changes nothing: the pictures of the file have {old} already. Leave it out, '
            "or pass a list to put them in another order."
        )
    new = _check_size(replace(config, channels=channels))
    values = {**draft.values, PATCH_WEIGHT: _adapt_patch_weight(draft, channels, policy)}
    words = policy if isinstance(policy, str) else f"taking the file's channels {', '.join(map(str, policy))}"
    note = f"patch projection adapted from {old} to {format_count(channels, 'channel')}: {words}"
    return replace(draft, config=new, values=values).with_note(note)


def adapt_pool(draft: ModelDraft, pool: Pool | None, outputs: int | None) -> ModelDraft:
    """Change the pooling. The file's head was not trained for it, so it must be removed or replaced.

    Raises:
        UsageError: the head would stay, or the file has no tensors for that pooling.
    """
    config = draft.config
    if pool in (None, config.pool):
        return draft
    if config.outputs and outputs in (None, config.outputs):
        raise UsageError(
            f'pool="{pool}" contradicts the file: its head was trained on pool="{config.pool}". '
            "Pass outputs=0 for features, or another number of outputs for a new head."
        )
    assert pool is not None
    without = adapt_outputs(draft, 0) if config.outputs or config.head == "tanh" else draft
    new = replace(without.config, pool=pool, distillation_head=False, pool_heads=None, pool_mlp_width=None)
    state = build_on_meta(new).state_dict()
    values = {name: tensor for name, tensor in without.values.items() if name in state}
    fitting = {name for name, tensor in values.items() if tensor.shape == state[name].shape}
    if missing := [name for name in state if name not in fitting and name not in computed_tensors(new)]:
        raise UsageError(
            f'pool="{pool}" needs {missing[0]}, which the file does not have. Its pooling is "{config.pool}".'
        )
    audit = _mark_dropped(without.audit, set(without.values) - set(values), f"pool={pool} has no use for it")
    note = f"pooling replaced: {config.pool} in the file, now {pool}"
    return replace(without, config=new, values=values, audit=audit).with_note(note)


def adapt_outputs(draft: ModelDraft, outputs: int | None) -> ModelDraft:
    """Replace the head by one of zeros with another number of outputs, or by none; its hidden layer is removed too."""
    config = draft.config
    if outputs is None or (outputs == config.outputs and (outputs or config.head == "linear")):
        return draft
    without_bank = replace(
        config, outputs=0, head="linear", bank_size=0, tiles=(1, 1), tile_overlap=0, upsample=1, queries=0
    )
    new = _check_size(replace(without_bank, outputs=outputs, head_bias=True))
    rest = {name: tensor for name, tensor in draft.values.items() if not name.startswith("head.")}
    shapes = {name: like.shape for name, like in build_on_meta(new).state_dict().items() if name.startswith("head.")}
    new_head = {name: torch.zeros(shape) for name, shape in shapes.items()}
    audit = _mark_dropped(draft.audit, set(draft.values) - set(rest), f"outputs={outputs} asks for another head")
    old = f"{config.outputs} outputs" if config.outputs else "none"
    note = f"head replaced: {old} in the file, now {f'{outputs}, all zeros' if outputs else 'none'}"
    return replace(draft, config=new, values={**rest, **new_head}, audit=audit).with_note(note)


def _check_size(config: ViTConfig) -> ViTConfig:
    """The architecture; UsageError where it is implausibly large."""
    if oversize := describe_oversize(config):
        raise UsageError(oversize)
    return config


def _mark_dropped(audit: Audit, removed: set[str], reason: str) -> Audit:
    """The audit, with the tensors of the removed parameters marked as dropped."""
    rows = list(audit.rows)
    for index, row in enumerate(rows):
        if row.action == "loaded" and set(row.ours.split(", ")) <= removed:
            rows[index] = replace(row, action="dropped", ours=reason)
    return replace(audit, rows=tuple(rows))


def _format_size(sides: tuple[int, int]) -> str:
    return f"{sides[0]}x{sides[1]}"


# -- Channels


def _adapt_patch_weight(draft: ModelDraft, channels: int, policy: ChannelPolicy) -> Tensor:
    """The patch projection [D, C, p, p] or [D, C * p * p] for C = `channels`."""
    config = draft.config
    if config.patches not in ("conv", "linear") or config.patch_norms:
        what = "norms around it" if config.patch_norms else config.patches
        raise UsageError(
            f"Only a plain projection of patches can be adapted to other channels; this model has {what}. "
            f"Give it pictures of {format_count(config.channels, 'channel')}."
        )
    weight, old = draft.values[PATCH_WEIGHT], config.channels
    kernel = weight.reshape(len(weight), old, *config.patch)  # [D, C, p, p]
    if policy == "sum":
        new = kernel.sum(dim=1, keepdim=True).expand(-1, channels, -1, -1) / channels
    elif policy == "mean":
        new = kernel.mean(dim=1, keepdim=True).expand(-1, channels, -1, -1)
    elif policy == "tile":
        new = kernel[:, [channel % old for channel in range(channels)]] * (old / channels)
    else:
        assert not isinstance(policy, str), "adapt_channels refuses other words"
        if len(policy) != channels or not all(0 <= channel < old for channel in policy):
            raise UsageError(
                f"channels_policy must give each of {format_count(channels, 'channel')} one of the file's, 0 to "
                f"{old - 1}. Got {list(policy)}."
            )
        new = kernel[:, list(policy)]
    new = new.contiguous()
    return new.flatten(1) if weight.ndim == 2 else new


def reorder_spec_channels(spec: ImageSpec, policy: ChannelPolicy | None) -> ImageSpec:
    """The image spec after a list of channels: mean and standard deviation are reordered with their channels."""
    if policy is None or isinstance(policy, str):
        return spec
    mean, std = (
        values if len(values) == 1 else tuple(values[channel] for channel in policy) for values in (spec.mean, spec.std)
    )
    return replace(spec, channels=len(policy), mean=mean, std=std)


# -- Building a model without initialising anything twice


def build_on_meta(config: ViTConfig) -> ViT:
    """The model on the meta device: names, shapes and dtypes without memory."""
    with torch.device("meta"):
        return ViT(config)


def build_model(config: ViTConfig, values: Mapping[str, Tensor]) -> ViT:
    """The model with these tensors, in evaluation mode; tensors that follow from the configuration are computed."""
    model, values = build_on_meta(config), dict(values)
    for name in computed_tensors(config):
        if name not in values and name == "rotary.periods":
            values[name] = dinov3_periods(config.head_dim)
        elif name not in values:
            values[name] = fixed_table(config.positions, config.grid, config.width, config.table_prefix)
    model.load_state_dict(values, strict=True, assign=True)
    return model.eval()
