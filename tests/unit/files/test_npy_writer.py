"""A `.npy` file that is written in pieces is the file that numpy would have written at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import UsageError
from vitrail.files.npy import open_npy_writer


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), tail=st.sampled_from([(), (3,), (2, 1, 4)]))
def test_pieces_make_the_same_file(tmp_path_factory, sizes, tail):
    folder = tmp_path_factory.mktemp("growing")
    generator = np.random.default_rng(len(sizes))
    parts = [generator.normal(size=(size, *tail)).astype(np.float32) for size in sizes]
    with open_npy_writer(folder / "grown.npy") as rows:
        for part in parts:
            rows.write_rows(part)
    np.save(folder / "whole.npy", np.concatenate(parts))
    assert (folder / "grown.npy").read_bytes() == (folder / "whole.npy").read_bytes()


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "kept.npy"
    np.save(path, np.arange(3))
    before = path.read_bytes()
    with pytest.raises(RuntimeError), open_npy_writer(path) as rows:
        rows.write_rows(np.zeros((2, 2), np.float32))
        raise RuntimeError
    with pytest.raises(UsageError, match=r"kept\.npy would hold no rows, so it was not written"), open_npy_writer(path):
        pass
    with pytest.raises(UsageError, match=r"must be float32 \[2\]\. Got float32 \[3\]"), open_npy_writer(path) as rows:
        rows.write_rows(np.zeros((2, 2), np.float32))
        rows.write_rows(np.zeros((2, 3), np.float32))
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["kept.npy"]
