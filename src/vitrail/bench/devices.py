"""Devices as their makers describe them, for plans of trainings that do not run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UsageError
from ..runtime import NumberFormat


@dataclass(frozen=True, kw_only=True)
class Device:
    """Rates are a second, bytes are bytes: nothing is in thousands."""

    name: str
    products: Mapping[NumberFormat, float]
    """Operations of dense matrix products, by number format."""
    copies: float
    """Bytes of its memory read and written."""
    memory: float
    """Bytes that it holds."""
    together: int
    """Devices in one machine."""
    inside: float
    """Bytes from one device to another of the same machine, each way."""
    between: float
    """Bytes that one device's share of the machine's network carries, each way."""

    def link(self, devices: int) -> float:
        """Bytes a second of the slowest way on a ring through so many devices."""
        return self.inside if devices <= self.together else self.between


# Sources: NVIDIA's data sheets of the SXM modules (dense rates, without sparsity; float32 as torch computes it unless
# TF32 is asked for); between machines one port of 400 Gb/s a device, 200 for the A100.
DEVICES = {
    "h100": Device(
        name="NVIDIA H100 SXM 80 GB",
        products={"float32": 67e12, "bfloat16": 989e12, "float16": 989e12},
        copies=3.35e12, memory=80e9, together=8, inside=450e9, between=50e9,
    ),
    "h200": Device(
        name="NVIDIA H200 SXM 141 GB",
        products={"float32": 67e12, "bfloat16": 989e12, "float16": 989e12},
        copies=4.8e12, memory=141e9, together=8, inside=450e9, between=50e9,
    ),
    "a100": Device(
        name="NVIDIA A100 SXM 80 GB",
        products={"float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12},
        copies=2.04e12, memory=80e9, together=8, inside=300e9, between=25e9,
    ),
}  # fmt: skip
HERE = "here"


def device(name: str) -> Device:
    """A device by its short name.

    Raises:
        UsageError: there is no such name.
    """
    if name not in DEVICES:
        raise UsageError(f"--on must be {HERE} (this machine, measured), {', '.join(DEVICES)}. Got {name!r}.")
    return DEVICES[name]
