"""What a person says about trackers: the [track] table of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

from ... import config
from ...errors import UsageError

Name = Literal["tensorboard", "wandb", "mlflow", "trackio"]
INSTALLED_BY = {"tensorboard": "pip install 'vitrail[track]'"}
"""How to get a tracker; the others by their own name."""


@dataclass(frozen=True, kw_only=True)
class TrackSettings:
    """Changes nothing that a run learns or writes; rates and losses are in metrics.jsonl with or without it."""

    to: tuple[Name, ...] = ()
    """Where the curves go beside metrics.jsonl: tensorboard (a folder in the run), wandb, mlflow, trackio; several with
    commas."""
    project: str = ""
    """Under what wandb, mlflow and trackio file the run; empty is what WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME says,
    else vitrail."""

    def check(self) -> None:
        """Refuse a tracker that is not installed, before a picture is read.

        Raises:
            UsageError: with the command that installs it.
        """
        for name in self.to:
            if find_spec(name) is None:
                command = INSTALLED_BY.get(name, f"pip install {name}")
                raise UsageError(
                    f"track.to {name} needs the package {name}, which is not here. Install it, {command}, or leave it "
                    "out: --track.to ''."
                )


@dataclass(frozen=True, kw_only=True)
class _Tracked:
    """The part of a plan that can be known before there is one."""

    track: TrackSettings = field(default_factory=TrackSettings)


def wished(overrides: Mapping[str, str]) -> TrackSettings:
    """What a plan's [track] will be, from the fields that were asked for by their dotted names."""
    ours = {name: text for name, text in overrides.items() if name.startswith("track.")}
    return config.override(_Tracked(), ours).track
