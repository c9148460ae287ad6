"""Random numbers that depend on (seed, purpose, epoch, sample, draw) alone, not on earlier draws.

A counter-based generator: the key is mixed from seed, purpose and epoch, each number is that key's bits at the
counter (sample, draw). So a run resumed in the middle of an epoch, a batch of another size, another number of
workers or a left-out file changes nothing for any other sample. Mixing is SplitMix64's finaliser (Steele, Lea and
Flood 2014, "Fast splittable pseudorandom number generators", variant 13 of Stafford), applied twice.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import NDArray


def uniform(seed: int, purpose: str, epoch: int, indices: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """[n, draws] numbers in [0, 1); row i belongs to sample `indices[i]` and is independent of the other rows."""
    samples = np.asarray(indices).astype(np.uint64)[:, None]  # [n, 1]
    columns = np.arange(draws, dtype=np.uint64)[None, :]  # [1, draws]
    bits = _mix(_mix(_key(seed, purpose, epoch) + samples * _GOLDEN) + columns * _GOLDEN)  # [n, draws]
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53  # the 53 bits that a float64 can hold


def permutation(seed: int, purpose: str, epoch: int, n: int) -> NDArray[np.int64]:
    """A random permutation of 0..n-1: sorted by one random number each."""
    return np.argsort(uniform(seed, purpose, epoch, np.arange(n), 1)[:, 0], kind="stable")


def derive(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed for another library's generator, such as `torch.Generator.manual_seed`."""
    return int(_key(seed, purpose, *numbers)[0] >> np.uint64(1))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: spreads consecutive counters


def _key(seed: int, purpose: str, *numbers: int) -> NDArray[np.uint64]:
    """A 64-bit key [1]; it depends on the count of `numbers` too, and they may be negative."""
    text = json.dumps([purpose, int(seed), *map(int, numbers)])
    return np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], dtype="<u8").astype(np.uint64)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
