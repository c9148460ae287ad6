"""Whatever is done to a shard, reading it gives pictures that lie inside of it or one DataError, soon."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tar_files import classed, write_tar
from vitrail.data.open import open_source
from vitrail.errors import DataError

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
LONG = "folder/" * 30  # 210 letters: in two fields, or in an extended header


@given(
    st.sampled_from(FORMATS),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4),
    st.floats(0.5, 1.5),
)
def test_damaged_shards_give_their_own_bytes_or_a_data_error(layout, changes, length):
    with tempfile.TemporaryDirectory() as folder:
        files = {
            (LONG if number % 4 < 2 else "") + name: data for number, (name, data) in enumerate(classed("ab").items())
        }
        path = write_tar(Path(folder) / "a.tar", files | classed("abab", 5), layout)
        data = bytearray(path.read_bytes())
        for place, value in changes:
            data[int(place * (len(data) - 1))] = value
        data = data[: int(length * len(data))]
        path.write_bytes(data)
        try:
            source = open_source(path)
            found = [picture.fetch() for picture in source.images]
        except DataError as error:
            assert "a.tar" in str(error) or str(error).startswith(("a holds", "Column", "a has"))
        else:
            assert all(each in data for each in found)
