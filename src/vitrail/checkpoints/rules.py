"""Read and write tensors by a layout's rules; a tensor without a rule is an error, never skipped.

Both directions use one expansion of the rules. `write_with_layout` makes the tensors that a file of the model has.
`read_with_layout` first checks that a file has exactly the names and shapes that would be written, then loads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ..errors import DamagedFileError, UsageError
from ..model.config import FIXED_POSITIONS, ViTConfig
from .layouts import (
    STACK,
    CheckRule,
    CopyRule,
    DropRule,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    TensorClaim,
    TensorDict,
    ZeroRule,
    expand_rules,
    find_ignore_rule,
    find_optional_names,
    has_prefix,
    invert_write,
    map_unprefixed_names,
    split_equally,
    writes_prefix,
)
from .validate import Audit, AuditRow, TensorAction, check_complete, check_finite

# Settings that no file of any family holds; outputs in evaluation mode at the model's own size do not depend on them.
_NOT_IN_FILES = (
    "dropout", "attention_dropout", "mlp_dropout", "drop_path", "grad_checkpointing", "init", "attention", "resample",
)  # fmt: skip


def read_with_layout(
    tensors: TensorDict, state: TensorDict, config: ViTConfig, layout: Layout, where: str
) -> tuple[dict[str, Tensor], Audit]:
    """Map every tensor of a file to our parameters.

    A file may lack copies, fixed tables and tensors that only training uses, if it lacks all of one reason. Tensors
    that the layout ignores are optional.

    Args:
        state: the model's own tensors, for names, shapes and dtypes; may be on the meta device.
        where: the file, for messages.

    Returns:
        Our tensors by our names, and the audit.

    Raises:
        DamagedFileError: a tensor is missing, has no rule or another shape, is not finite, differs from its original,
            or is a fixed table of another convention. The message names it.
        UsageError: the layout has no place for a part of the model.
    """
    return load_with_layout(dict(tensors), state, config, layout, where)


def load_with_layout(
    tensors: dict[str, Tensor],
    state: TensorDict,
    config: ViTConfig,
    layout: Layout,
    where: str,
    allow_nonfinite: bool = False,
) -> tuple[dict[str, Tensor], Audit]:
    """As `read_with_layout`, but empties `tensors` on the way, so that file and model are never both whole in memory.

    Args:
        allow_nonfinite: note tensors with NaN or infinity in the audit, instead of refusing them.
    """
    claims = expand_rules(layout, state, config, has_prefix(layout, tensors))
    ignored = {name: rule for name in tensors if name not in claims and (rule := find_ignore_rule(layout, name))}
    used = {name: tensor for name, tensor in tensors.items() if name not in ignored}
    absent = find_optional_names(used, claims)
    shapes = _expected_shapes(claims, state, config)
    check_complete(used, {name: shape for name, shape in shapes.items() if name not in absent}, layout.key, where)
    warnings = check_finite(used, where, allow_nonfinite)
    for name in used:
        _check_claim(name, claims[name], used, config, where)
    rows = tuple(_make_audit_row(name, tensor, ignored.get(name) or claims[name]) for name, tensor in tensors.items())
    used.clear()
    values: dict[str, Tensor] = {}
    for claim in _unique_claims(claims):
        theirs = [tensors.pop(name) for name in claim.theirs if name in tensors]
        if claim.fills_model:
            values.update(zip(claim.ours, _read_claim(theirs, claim, state, config), strict=True))
    tensors.clear()
    return values, Audit(layout=layout.name, variant=layout.variant, rows=rows, warnings=warnings)


def write_with_layout(
    state: TensorDict, config: ViTConfig, layout: Layout, settings: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """A model's tensors under their names, as the family's own code would save them.

    Args:
        settings: fields of ViTConfig that are stored beside the file, in a config.json.

    Raises:
        UsageError: the layout cannot express the model, so that reading it back would give another one.
    """
    if layout.prepare_export is not None:
        config, state = layout.prepare_export(config, dict(state))
    claims = expand_rules(layout, state, config, writes_prefix(layout, state, config))
    tensors: dict[str, Tensor] = {}
    for claim in _unique_claims(claims):
        tensors.update(zip(claim.theirs, _write_claim(claim, tensors, state, config), strict=True))
    _check_round_trip(tensors, claims, config, layout, settings or {})
    return {name: tensors[name] for name in claims}


def _check_round_trip(
    tensors: TensorDict,
    claims: Mapping[str, TensorClaim],
    config: ViTConfig,
    layout: Layout,
    settings: Mapping[str, Any],
) -> None:
    """Refuse to write a file that would be read back as another model."""
    bare = {name: tensors[full] for name, full in map_unprefixed_names(layout, tensors).items()}
    hints = LayoutHints(
        layout=layout.name,
        heads=config.heads,
        image_size=config.image_size,
        channels=config.channels,
        pool=config.pool,
        match=layout.match,
        settings=settings,
    )
    read_back = layout.describe(bare, hints)
    placed = {name for claim in claims.values() if claim.fills_model for name in claim.ours}
    for name in (field.name for field in fields(config) if field.name not in _NOT_IN_FILES):
        theirs, ours = settings.get(name, getattr(read_back, name)), getattr(config, name)
        if _normalize_setting(name, theirs, placed) != _normalize_setting(name, ours, placed):
            raise UsageError(
                f"The layout {layout.key} cannot hold this model: it means {name}={theirs!r}, "
                f"the model has {name}={ours!r}. Save it as a bundle instead."
            )


def _normalize_setting(name: str, value: object, placed: set[str]) -> object:
    """A setting in a form that is equal for equal functions at the model's own size."""
    if name == "patches":
        return "conv" if value == "linear" else value
    if name == "layer_scale":
        return value is not None  # its initial value is in no file
    if name == "positions" and "positions.table" in placed and value in ("indexed", *FIXED_POSITIONS):
        return "learned"  # the file holds the table itself
    return value


def _unique_claims(claims: Mapping[str, TensorClaim]) -> Iterable[TensorClaim]:
    """Every claim once, including claims of several names."""
    return (claim for name, claim in claims.items() if claim.theirs[0] == name)


def _write_claim(claim: TensorClaim, tensors: TensorDict, state: TensorDict, config: ViTConfig) -> list[Tensor]:
    rule = claim.rule
    match rule:
        case NameRule(step=step):
            return [step.write(state[claim.ours[0]], config)]
        case PartsRule(step=parts):
            ours = [state[name] for name in claim.ours]
            return split_equally(ours, len(claim.theirs)) if parts is STACK else parts.write(ours, config)
        case CopyRule():
            return [tensors[claim.ours[0]].clone()]
        case DropRule(step=step):
            like = step.write(state[claim.ours[0]], config)
            return [torch.ones_like(like) if claim.theirs[0].endswith("weight") else torch.zeros_like(like)]
        case ZeroRule(shape=shape):
            return [torch.zeros(shape(config))]
        case CheckRule(table=table):
            return [table(config)]
        case IgnoreRule():
            raise AssertionError("an ignored tensor has no claim")


def _expected_shapes(
    claims: Mapping[str, TensorClaim], state: TensorDict, config: ViTConfig
) -> dict[str, tuple[int, ...] | None]:
    """The shape that each of their tensors must have; None for a fixed table, which has its own comparison."""
    like = {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in state.items()}
    written: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...] | None] = {}
    for claim in _unique_claims(claims):
        if isinstance(claim.rule, CheckRule):
            shapes[claim.theirs[0]] = None
            continue
        for name, tensor in zip(claim.theirs, _write_claim(claim, written, like, config), strict=True):
            written[name], shapes[name] = tensor, tuple(tensor.shape)
    return shapes


def _check_claim(name: str, claim: TensorClaim, tensors: TensorDict, config: ViTConfig, where: str) -> None:
    """Refuse a copy that differs from its original, or a fixed table that is not ours."""
    match claim.rule:
        case CopyRule():
            copy, original = tensors[name], tensors[claim.ours[0]]
            if copy.shape == original.shape and torch.allclose(copy, original, rtol=0, atol=0, equal_nan=True):
                return
            gap = (copy.double() - original.double()).abs().max().item()
            raise DamagedFileError(
                f"{where}: {name} and {claim.ours[0]} are one tensor under two names and must be equal. "
                f"They differ by up to {gap:.3g}; delete the one that was not trained."
            )
        case CheckRule(compare=compare):
            if wrong := compare(tensors[name], config):
                raise DamagedFileError(f"{where}: {name} {wrong}")


def _read_claim(theirs: list[Tensor], claim: TensorClaim, state: TensorDict, config: ViTConfig) -> list[Tensor]:
    """Their tensors in our shapes and dtypes, each in its own storage."""
    likes = [state[name] for name in claim.ours]
    match claim.rule:
        case NameRule(step=step) if step.read is None:
            ours = [invert_write(step.write, theirs[0], likes[0], config)]
        case NameRule(step=step):
            assert step.read is not None
            ours = [step.read(theirs[0], likes[0])]
        case PartsRule(step=parts):
            assert parts.read is not None
            ours = parts.read(theirs, likes)
        case _:
            raise AssertionError("this rule fills no parameter")
    taken = {tensor.untyped_storage().data_ptr() for tensor in theirs}
    separate = []
    for tensor, like in zip(ours, likes, strict=True):
        own = tensor.to(like.dtype).contiguous()
        own = own.clone() if own.untyped_storage().data_ptr() in taken else own
        taken.add(own.untyped_storage().data_ptr())
        separate.append(own)
    return separate


def _make_audit_row(name: str, tensor: Tensor, claim: TensorClaim | IgnoreRule) -> AuditRow:
    rule, ours = (claim, ()) if isinstance(claim, IgnoreRule) else (claim.rule, claim.ours)
    action: TensorAction
    match rule:
        case NameRule() | PartsRule():
            action, text = "loaded", ", ".join(ours)
        case CopyRule():
            action, text = "equal", f"a second name of {ours[0]}"
        case CheckRule(reason=reason):
            action, text = "checked", reason
        case DropRule(reason=reason) | ZeroRule(reason=reason) | IgnoreRule(reason=reason):
            action, text = "dropped", reason
    return AuditRow(theirs=name, shape=tuple(tensor.shape), action=action, ours=text)
