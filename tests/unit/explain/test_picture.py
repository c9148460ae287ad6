"""The picture to explain: ours is what its script draws, and a .npy of floats is read as 0..1."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import DataError
from vitrail.explain.figures import SAMPLE_IMAGE, read_image

SCRIPT = Path(__file__).parents[3] / "examples" / "draw_panes.py"


def test_our_window_is_what_its_script_draws():
    spec = importlib.util.spec_from_file_location("draw_panes", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    drawn = script.draw()
    assert drawn.shape == (60, 100)
    assert (
        np.abs(drawn.astype(int) - read_image(SAMPLE_IMAGE)[..., 0]).max() <= 1
    )  # sines differ by a bit between machines
    assert SAMPLE_IMAGE.stat().st_size < 10_000


def test_floats_run_from_black_to_white(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[0.0, 0.5], [1.0, 0.25]], np.float32))
    assert read_image(tmp_path / "a.npy")[..., 0].tolist() == [[0, 128], [255, 64]]
    assert read_image(tmp_path / "a.npy", channels=3).shape == (2, 2, 3)


def test_bytes_are_read_as_they_are(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", values)
    Image.fromarray(values).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.npy", 3), values)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", 3), values)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[0.0, 3.5]]), r"floats from 0 \(black\) to 1 \(white\)\. Got 0 to 3\.5"),
        (np.array([[0.0, np.nan]]), r"floats from 0"),
        (np.zeros(5), r"numbers \[H, W\] or \[H, W, C\]\. Got shape \[5\]"),
        (np.zeros((2, 2), np.int32), r"floats in 0\.\.1 or 8-bit numbers\. Got int32"),
    ],
)
def test_another_array_is_refused_by_name(array, message, tmp_path):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=r"a\.npy.*" + message):
        read_image(tmp_path / "a.npy")


def test_objects_and_missing_files_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"a\.npy must hold one array of numbers"):
        read_image(tmp_path / "a.npy")
    with pytest.raises(DataError, match=r"gone\.npy"):
        read_image(tmp_path / "gone.npy")
    with pytest.raises(DataError, match=r"gone\.png"):
        read_image(tmp_path / "gone.png")
