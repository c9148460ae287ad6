"""A patch projection for another number of channels than the one that was trained, by a policy that a person names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ..errors import UsageError
from ..model.config import ViTConfig
from ..spec import ImageSpec

POLICIES = ("sum", "mean", "tile")
Policy = str | tuple[int, ...]
"""One of POLICIES, or numbers. sum: every new channel gets the sum of the file's channels over the number of new ones,
so that a grey picture answers as the same picture repeated over the file's channels did. mean: every new channel gets
the mean of the file's. tile: the file's channels in turn, again and again, times file's / new count. Numbers: the
file's channel (from 0) that each new channel gets, unchanged."""
WEIGHT = "tokens.patches.weight"


def adapt(weight: Tensor, config: ViTConfig, channels: int, policy: Policy) -> Tensor:
    """The projection [D, C, p, p] or [D, C * p * p] of `config` for so many channels.

    Raises:
        UsageError: the policy is not known or does not fit the counts, or the model's patches are not a plain
            projection of pixels.
    """
    if config.patches not in ("conv", "linear") or config.patch_norms:
        what = "norms around it" if config.patch_norms else config.patches
        raise UsageError(
            f"Only a plain projection of patches can be adapted to other channels; this model has {what}. "
            f"Give it pictures of {config.channels} channels."
        )
    kernel = weight.reshape(len(weight), config.channels, *config.patch)  # [D, C, p, p]
    new = _adapted(kernel, channels, policy).contiguous()
    return new.flatten(1) if weight.ndim == 2 else new


def check(policy: Policy, old: int, channels: int | None) -> None:
    """Refuse a policy that has nothing to do.

    Raises:
        UsageError: it is none of ours, no number of channels was asked for, or the file has that number and the policy
            is no list that could put them in another order.
    """
    if isinstance(policy, str) and policy not in POLICIES:
        raise UsageError(f"channels_policy must be {', '.join(POLICIES)} or a list of channels. Got {policy!r}.")
    if channels is None:
        raise UsageError(
            f"channels_policy={_said(policy)} adapts the file to other channels, and channels= does not say how many. "
            f"Pass channels= too; the file's pictures have {old}."
        )
    if isinstance(policy, str) and channels == old:
        raise UsageError(
            f"channels_policy={_said(policy)} changes nothing: the file's pictures have {old} channels already. "
            "Leave it out, or pass a list to put them in another order."
        )


def recoloured(spec: ImageSpec, policy: Policy | None) -> ImageSpec:
    """The pictures after a list of channels: mean and deviation go where their channel goes."""
    if policy is None or isinstance(policy, str):
        return spec
    mean, std = (
        values if len(values) == 1 else tuple(values[place] for place in policy) for values in (spec.mean, spec.std)
    )
    return replace(spec, channels=len(policy), mean=mean, std=std)


def _said(policy: Policy) -> str:
    return f'"{policy}"' if isinstance(policy, str) else str(list(policy))


def _adapted(kernel: Tensor, channels: int, policy: Policy) -> Tensor:
    old = kernel.shape[1]
    if policy == "sum":
        return kernel.sum(dim=1, keepdim=True).expand(-1, channels, -1, -1) / channels
    if policy == "mean":
        return kernel.mean(dim=1, keepdim=True).expand(-1, channels, -1, -1)
    if policy == "tile":
        return kernel[:, [channel % old for channel in range(channels)]] * (old / channels)
    return kernel[:, _places(policy, old, channels)]


def _places(policy: Sequence[int] | str, old: int, channels: int) -> list[int]:
    assert not isinstance(policy, str), "check() comes first"
    if len(policy) != channels or not all(0 <= place < old for place in policy):
        raise UsageError(
            f"channels_policy must give each of {channels} channels one of the file's, 0 to {old - 1}. "
            f"Got {list(policy)}."
        )
    return list(policy)
