"""What is written comes back: settings through TOML, tensors through files, random numbers through any batch."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vitrail.config import override, read, read_toml, to_toml, write
from vitrail.config.reader import MAX_FLOAT
from vitrail.files import safetensors_file
from vitrail.randomness import permutation, uniform

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))  # all but lone surrogates, which no UTF-8 file can hold
COUNTS = st.integers(1 - 2**63, 2**63 - 1)
NUMBERS = st.floats(-MAX_FLOAT, MAX_FLOAT)


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: float = 0.0
    word: str = ""
    pair: tuple[int, float] = (0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int = 0
    on: bool = False
    choice: Literal["a", "b", 3] = "a"
    words: tuple[str, ...] = ()
    grid: tuple[tuple[int, ...], ...] = ()
    size: int | tuple[int, int] = 1
    place: Path | None = None
    inner: Inner = Inner()
    perhaps: Inner | None = None


inners = st.builds(Inner, number=NUMBERS, word=TEXTS, pair=st.tuples(COUNTS, NUMBERS))
outers = st.builds(
    Outer,
    count=COUNTS,
    on=st.booleans(),
    choice=st.sampled_from(["a", "b", 3]),
    words=st.lists(TEXTS, max_size=3).map(tuple),
    grid=st.lists(st.lists(COUNTS, max_size=2).map(tuple), max_size=2).map(tuple),
    size=st.one_of(COUNTS, st.tuples(COUNTS, COUNTS)),
    place=st.none() | TEXTS.map(Path),
    inner=inners,
    perhaps=st.none() | inners,
)


@given(settings=outers)
def test_settings_survive_plain_values_and_toml(settings):
    assert read(Outer, write(settings), "here") == settings
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        path.write_text(to_toml(settings, {"count": "because"}), encoding="utf-8", newline="")
        assert read_toml(path, Outer) == settings


@given(before=outers, after=outers)
def test_text_overrides_reach_any_settings(before, after):
    changes = {
        "count": str(after.count),
        "on": str(after.on),
        "choice": str(after.choice),
        "inner.number": repr(after.inner.number),
        "inner.pair": ",".join(map(repr, after.inner.pair)),
        "size": str(after.size),
    }
    found = override(before, changes)
    assert (found.count, found.on, found.choice, found.size) == (after.count, after.on, after.choice, after.size)
    assert (found.inner.number, found.inner.pair) == (after.inner.number, after.inner.pair)
    assert (found.words, found.inner.word, found.perhaps) == (before.words, before.inner.word, before.perhaps)


@given(
    array=arrays.arrays(
        st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_]),
        arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    name=st.from_regex(r"[\w.-]{1,40}", fullmatch=True).filter(lambda name: name != "__metadata__"),
    note=TEXTS,
)
def test_tensors_and_their_texts_survive_a_file(array, name, note):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        safetensors_file.save_tensors(path, {name: torch.from_numpy(array)}, {"note": note})
        found = safetensors_file.load_tensors(path)[name]
        assert safetensors_file.read_metadata(path) == {"note": note}
    assert found.numpy().dtype == array.dtype
    assert found.numpy().tobytes() == array.tobytes()


@given(
    seed=COUNTS,
    purpose=TEXTS,
    epoch=st.integers(0, 2**40),
    samples=arrays.arrays(np.int64, st.integers(0, 20), elements=st.integers(0, 2**62)),
)
def test_random_numbers_do_not_know_their_batch(seed, purpose, epoch, samples):
    together = uniform(seed, purpose, epoch, samples, 3)
    alone = [uniform(seed, purpose, epoch, samples[place : place + 1], 3) for place in range(len(samples))]
    assert np.array_equal(together, np.concatenate([np.empty((0, 3)), *alone]))
    assert np.all((together >= 0) & (together < 1))


@given(seed=COUNTS, n=st.integers(0, 200))
def test_a_permutation_is_one(seed, n):
    assert sorted(permutation(seed, "order", 0, n)) == list(range(n))
