"""Something new is in its place whole or not at all."""

from __future__ import annotations

import pytest

from vitrail.files.atomic import commit_draft, make_draft


def test_what_is_kept_lies_in_its_place_with_what_lay_beside_it(tmp_path):
    out = tmp_path / "made" / "model.onnx"
    with make_draft(out) as place:
        place.write_bytes(b"graph")
        place.with_name("model.onnx.data").write_bytes(b"weights")
        commit_draft(place, out)
    assert {path.name: path.read_bytes() for path in out.parent.iterdir()} == {
        "model.onnx": b"graph",
        "model.onnx.data": b"weights",
    }


def test_what_is_refused_leaves_nothing(tmp_path):
    out = tmp_path / "model"
    with pytest.raises(RuntimeError, match="refused"), make_draft(out) as place:
        place.mkdir()
        (place / "half").write_bytes(b"half")
        raise RuntimeError("refused")
    assert not list(tmp_path.iterdir())
