"""A table without its placeholders, for one model: every name of theirs with the rule that claims it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product

from ..errors import UsageError
from ..model.config import FIXED_POSITIONS, ViTConfig
from .layouts import Check, Drop, Ignore, Layout, Name, Parts, Rule, Same, Tensors, Zero


@dataclass(frozen=True)
class Claim:
    """A rule for one block and one of weight and bias."""

    rule: Rule
    theirs: tuple[str, ...]
    """Their names as they stand in a file, prefix included."""
    ours: tuple[str, ...]
    """Our parameters; for `Same` their other name, for `Zero` and `Check` none."""

    @property
    def loads(self) -> bool:
        """Whether our parameters come from it."""
        return isinstance(self.rule, Name | Parts)


def expand(layout: Layout, state: Tensors, config: ViTConfig, prefixed: bool) -> dict[str, Claim]:
    """Every name that a file of this model may have, each with its claim; several names may share one.

    Raises:
        UsageError: the layout has no place for a part of the model.
    """
    claims: dict[str, Claim] = {}
    placed: set[str] = set()
    for rule in layout.rules:
        for claim in _claims(rule, layout, config.depth, prefixed):
            known: Collection[str] = claims if isinstance(rule, Same) else state
            if all(name in known for name in claim.ours):
                assert claims.keys().isdisjoint(claim.theirs), f"{layout.key} has two rules for {claim.theirs}"
                assert not claim.loads or placed.isdisjoint(claim.ours), f"{layout.key} fills {claim.ours} twice"
                claims.update(dict.fromkeys(claim.theirs, claim))
                placed.update(claim.ours if claim.loads else ())
    if left := [name for name in state if name not in placed and name not in computed(config)]:
        raise UsageError(
            f"The layout {layout.key} has no place for {len(left)} of the model's tensors: {', '.join(left[:3])}. "
            "Save it as a bundle instead."
        )
    return claims


def computed(config: ViTConfig) -> tuple[str, ...]:
    """Our tensors that a layout may leave out, because the configuration alone tells them."""
    table = ("positions.table",) if config.positions in FIXED_POSITIONS else ()
    return (*table, "rotary.periods") if config.rotary == "dinov3" else table


def is_prefixed(layout: Layout, names: Collection[str]) -> bool:
    """Whether a file's names carry the layout's prefix."""
    return bool(layout.prefix) and any(name.startswith(layout.prefix) for name in names)


def writes_prefix(layout: Layout, state: Tensors, config: ViTConfig) -> bool:
    """Whether a file of this model has the prefix: only beside names that stand outside it, if there can be any."""
    if not layout.outside:
        return bool(layout.prefix)
    bare = expand(layout, state, config, prefixed=False)
    return any(
        name == filled for name in bare for pattern in layout.outside for filled, *_ in _fill(config.depth, pattern)
    )


def without_prefix(layout: Layout, names: Collection[str]) -> dict[str, str]:
    """Every name of a file as the rules write it -> as it stands in the file."""
    return {name.removeprefix(layout.prefix): name for name in names}


def ignored(layout: Layout, name: str) -> Ignore | None:
    """The rule by which a tensor that nothing else claims is left aside, if there is one."""
    for rule in layout.rules:
        if isinstance(rule, Ignore) and any(
            fnmatchcase(form, rule.theirs) for form in (name, name.removeprefix(layout.prefix))
        ):
            return rule
    return None


def _claims(rule: Rule, layout: Layout, depth: int, prefixed: bool) -> Iterator[Claim]:
    if isinstance(rule, Ignore):
        return
    theirs, ours = _names_of(rule)
    inside = [layout.prefix if prefixed and name not in layout.outside else "" for name in theirs]
    if isinstance(rule, Same):
        ours = (layout.prefix + ours[0] if prefixed and ours[0] not in layout.outside else ours[0],)
    for filled in _fill(depth, *(prefix + name for prefix, name in zip(inside, theirs, strict=True)), *ours):
        yield Claim(rule, filled[: len(theirs)], filled[len(theirs) :])


def _names_of(rule: Rule) -> tuple[tuple[str, ...], tuple[str, ...]]:
    match rule:
        case Name():
            return (rule.theirs,), (rule.ours,)
        case Parts():
            return rule.theirs, rule.ours
        case Same():
            return (rule.theirs,), (rule.partner,)
        case Drop():
            return (rule.theirs,), (rule.like,)
        case Zero() | Check() | Ignore():
            return (rule.theirs,), ()


def _fill(depth: int, *patterns: str) -> Iterator[tuple[str, ...]]:
    """The names for every block and for weight and bias, where they have placeholders."""
    blocks = range(depth) if any("{i}" in pattern for pattern in patterns) else (0,)
    parts = ("weight", "bias") if any("{p}" in pattern for pattern in patterns) else ("",)
    for i, p in product(blocks, parts):
        yield tuple(pattern.replace("{i}", str(i)).replace("{p}", p) for pattern in patterns)


def kinds_left_out(tensors: Tensors, claims: Mapping[str, Claim]) -> set[str]:
    """Names that a file may lack: kinds of copies, drops, zeros and checks of which it has none at all."""
    kinds: dict[str, set[str]] = {}
    for theirs, claim in claims.items():
        if isinstance(claim.rule, Same | Drop | Zero | Check):
            kinds.setdefault(claim.rule.reason, set()).add(theirs)
    return {theirs for kind in kinds.values() if kind.isdisjoint(tensors) for theirs in kind}
