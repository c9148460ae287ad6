"""What a person types beside a MODEL, as `models.Said`: words checked against the fixed lists, text against kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar, get_args

from .. import config
from ..checkpoints.adapt import CHANNEL_POLICIES, ChannelPolicy
from ..checkpoints.layouts import Match
from ..errors import UsageError
from ..model.config import Pool, ViTConfig
from .models import Said
from .wishes import pixels

Word = TypeVar("Word", bound=str)
PREFIX = "model."
"""Stands before the names of architecture fields on the command line, as in a plan."""


def said(
    layout: str | None = None,
    heads: int | None = None,
    image_size: str | int | tuple[int, int] | None = None,
    channels: int | None = None,
    pool: str | None = None,
    match: str | None = None,
    outputs: int | None = None,
    channels_policy: str | Sequence[int] | None = None,
    network: str | None = None,
    settings: Iterable[tuple[str, str]] = (),
    allow_nonfinite: bool = False,
) -> Said:
    """Everything that was typed, checked.

    Args:
        image_size: 64 or "60x100".
        channels_policy: sum, mean, tile, or the file's channel for each new one, such as "0,0,2".
        settings: pairs such as ("model.activation", "QuickGELU").

    Raises:
        UsageError: an unknown word, or a setting that is none of the architecture's fields.
    """
    return Said(
        layout=layout,
        heads=heads,
        image_size=None if image_size is None else pixels(image_size),
        channels=channels,
        pool=None if pool is None else _one_of(pool, "pool", get_args(Pool)),
        match=None if match is None else _one_of(match, "match", get_args(Match)),
        outputs=outputs,
        channels_policy=None if channels_policy is None else policy(channels_policy),
        network=network,
        settings=_settings(dict(settings)),
        allow_nonfinite=allow_nonfinite,
    )


def policy(text: str | Sequence[int]) -> ChannelPolicy:
    """How a patch projection is adapted: one of three words, or the file's channel for each new one.

    Raises:
        UsageError: neither.
    """
    if not isinstance(text, str):
        return tuple(text)
    if all(part.strip().isdecimal() for part in text.split(",")):
        return tuple(int(part) for part in text.split(","))
    return _one_of(text, "channels_policy", CHANNEL_POLICIES)


def _one_of(word: str, name: str, known: Sequence[Word]) -> Word:
    for choice in known:
        if word == choice:
            return choice
    raise UsageError(f"{name} must be {', '.join(known[:-1])} or {known[-1]}. Got {word!r}.")


def _settings(typed: dict[str, str]) -> dict[str, object]:
    """Fields of the architecture, without the prefix that a plan puts before them."""
    if strange := [name for name in typed if not name.startswith(PREFIX)]:
        raise UsageError(
            f"Beside a model only fields of its architecture can be set, such as --model.activation. "
            f"Got --{strange[0]}."
        )
    return config.parse_some(ViTConfig, {name.removeprefix(PREFIX): text for name, text in typed.items()})
