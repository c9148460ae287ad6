"""What was read, made into what was asked for: another picture size, other channels, another pooling, another head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import UsageError
from ..model.config import Pool, ViTConfig
from ..model.positions import resample_table
from .audit import Audit
from .build import on_meta
from .channels import WEIGHT, Policy, adapt, check
from .expand import computed

TABLE = "positions.table"


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A model before it is built."""

    config: ViTConfig
    values: Mapping[str, Tensor]
    audit: Audit
    notes: tuple[str, ...] = ()
    """What was done to it, in sentences without a full stop."""

    def with_note(self, note: str) -> Draft:
        """The same with one sentence more."""
        return replace(self, notes=(*self.notes, note))


def to_size(draft: Draft, size: tuple[int, int] | None) -> Draft:
    """For pictures of another size: a learned table is resampled once, a fixed one computed anew.

    Raises:
        UsageError: a side is not a multiple of the patch.
    """
    config = draft.config
    if size is None or size == config.image_size:
        return draft
    new = replace(config, image_size=size)
    draft = replace(draft, config=new)
    if TABLE not in draft.values or new.grid == config.grid:
        return draft.with_note(f"made for pictures of {_by(config.image_size)} pixels, now for {_by(size)}")
    values = dict(draft.values)
    if TABLE in computed(config):
        del values[TABLE]
        return replace(draft, values=values).with_note(f"positions computed anew for {_by(new.grid)} patches")
    table, first = values[TABLE], config.table_prefix
    patches = resample_table(table[first:], config.grid, new.grid, config.resample)
    values[TABLE] = torch.cat([table[:first], patches])
    note = f"positions resampled from {_by(config.grid)} to {_by(new.grid)} patches by the rule {config.resample}"
    return replace(draft, values=values).with_note(note)


def to_channels(draft: Draft, channels: int | None, policy: Policy | None) -> Draft:
    """For pictures of another number of channels, by the policy that a person named.

    Raises:
        UsageError: the number is another and no policy was named, or a policy was and there is nothing that it could
            adapt, or it does not fit.
    """
    config = draft.config
    if policy is not None:
        check(policy, config.channels, channels)
    elif channels in (None, config.channels):
        return draft
    else:
        raise UsageError(
            f"channels={channels} contradicts the file: its pictures have {config.channels}. "
            'Leave channels= out, or name how to adapt it: channels_policy="sum", "mean", "tile" or a list.'
        )
    assert channels is not None
    values = {**draft.values, WEIGHT: adapt(draft.values[WEIGHT], config, channels, policy)}
    words = policy if isinstance(policy, str) else f"taking the file's channels {', '.join(map(str, policy))}"
    note = f"patch projection adapted from {config.channels} to {channels} channels: {words}"
    return replace(draft, config=replace(config, channels=channels), values=values).with_note(note)


def to_pool(draft: Draft, pool: Pool | None, outputs: int | None) -> Draft:
    """With another pooling, for which the file's head was not trained: there must be none, or another one asked for.

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
    without = to_outputs(draft, 0) if config.outputs or config.head == "tanh" else draft
    new = replace(without.config, pool=pool, distillation_head=False)
    state = on_meta(new).state_dict()
    kept = {name: tensor for name, tensor in without.values.items() if name in state}
    fitting = {name for name, tensor in kept.items() if tensor.shape == state[name].shape}
    if lacking := [name for name in state if name not in fitting and name not in computed(new)]:
        raise UsageError(
            f'pool="{pool}" needs {lacking[0]}, which the file does not have. Its pooling is "{config.pool}".'
        )
    gone = set(without.values) - set(kept)
    audit = _dropped(without.audit, gone, f"pool={pool} has no use for it")
    note = f"pooling replaced: {config.pool} in the file, now {pool}"
    return replace(without, config=new, values=kept, audit=audit).with_note(note)


def to_outputs(draft: Draft, outputs: int | None) -> Draft:
    """Under a head of zeros with another number of outputs, or under none; a hidden layer before it goes too."""
    config = draft.config
    if outputs is None or (outputs == config.outputs and (outputs or config.head == "linear")):
        return draft
    new = replace(config, outputs=outputs, head="linear", head_bias=True)
    kept = {name: tensor for name, tensor in draft.values.items() if not name.startswith("head.")}
    fresh = {
        name: torch.zeros(tensor.shape)
        for name, tensor in on_meta(new).state_dict().items()
        if name.startswith("head.")
    }
    gone = set(draft.values) - set(kept)
    audit = _dropped(draft.audit, gone, f"outputs={outputs} asks for another head")
    old = f"{config.outputs} outputs" if config.outputs else "none"
    note = f"head replaced: {old} in the file, now {f'{outputs}, all zeros' if outputs else 'none'}"
    return replace(draft, config=new, values={**kept, **fresh}, audit=audit).with_note(note)


def _dropped(audit: Audit, gone: set[str], reason: str) -> Audit:
    """The report, in which what filled these parameters is dropped."""
    rows = tuple(
        replace(row, action="dropped", ours=reason)
        if row.action == "loaded" and set(row.ours.split(", ")) <= gone
        else row
        for row in audit.rows
    )
    return replace(audit, rows=rows)


def _by(sides: tuple[int, int]) -> str:
    return f"{sides[0]}x{sides[1]}"
