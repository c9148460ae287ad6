"""Whether a training begins from a checkpoint, and from which: what was asked for, or what is here and would help."""

from __future__ import annotations

from dataclasses import dataclass

from ...runtime import Runtime
from ..planning.planner import minutes_of
from ..planning.wishes import Fingerprint, Wishes
from .planned import least_seconds
from .weights import RECOMMENDED, Checkpoint, downloaded, open_checkpoint

SMALL_SIDE = 64
"""Pictures with a shorter side than this have no details that a large checkpoint would know."""


@dataclass(frozen=True)
class Selected:
    """The checkpoint, if there is one, and what to say about it."""

    checkpoint: Checkpoint | None
    reason: str
    notes: tuple[str, ...] = ()


def selected(found: Fingerprint, wishes: Wishes, runtime: Runtime) -> Selected:
    """The checkpoint that --weights names; with auto a recommended one, if it is on this machine and would help.

    Nothing is downloaded unless a name on the Hub was given.

    Raises:
        as `weights.open_checkpoint`.
    """
    if wishes.weights == "none":
        return Selected(None, "asked for")
    if wishes.weights != "auto":
        checkpoint = open_checkpoint(wishes.weights)
        return Selected(checkpoint, "asked for", _told(checkpoint))
    if wishes.model is not None:
        return Selected(None, "--model names a shape of its own")
    if wishes.pretrain:
        return Selected(None, "--pretrain begins from random values")
    if wishes.overrides.get("teacher.kind") == "features":
        return Selected(None, "a teacher of features begins from random values")
    if min(found.height, found.width) < SMALL_SIDE:
        return Selected(None, f"pictures of {found.height} x {found.width} have few details that a checkpoint knows")
    if found.channels not in (1, 3):
        return Selected(None, f"no recommended checkpoint reads pictures of {found.channels} channels")
    suitable = RECOMMENDED[:1] if runtime.device == "cpu" else RECOMMENDED[::-1]
    for one in suitable:
        if (path := downloaded(one)) is not None:
            checkpoint = open_checkpoint(str(path))
            features = least_seconds(found, checkpoint.config, runtime)
            if (seconds := minutes_of(wishes) * 60) and features > seconds / 2:
                about = f"the features of {found.count:,} pictures alone would take about {features:.0f} s"
                return Selected(None, f"{about} of {seconds:g}")
            return Selected(
                checkpoint, f"{one.name} is on this machine and knows pictures of this size", _told(checkpoint)
            )
    best = suitable[0]
    advice = (
        f"From scratch: no recommended checkpoint is on this machine. {best.repository} ({best.megabytes} MB, "
        f"{best.licence}) would probably do better: add --weights {best.name} to download it."
    )
    return Selected(None, "no recommended checkpoint is on this machine", (advice,))


def _told(checkpoint: Checkpoint) -> tuple[str, ...]:
    """One sentence."""
    about = "; ".join(checkpoint.notes)
    return (f"Begins from {checkpoint.name}{': ' if about else ''}{about}.",)
