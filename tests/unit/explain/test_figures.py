"""Figures: what is drawn where, what the titles say, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import UsageError
from vitrail.explain.figures import plot_patch_grid, plot_token_strip, save_png


def picture(channels: int = 1) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, 12, channels), dtype=np.uint8)


def test_patches_are_numbered_in_reading_order_at_their_centres():
    (axes,) = plot_patch_grid(picture(), (3, 4)).axes
    found = {text.get_text(): text.get_position() for text in axes.texts}
    assert list(found) == ["1", "2", "3", "4", "5", "6"]
    assert found["1"] == (1.5, 1.0)
    assert found["3"] == (9.5, 1.0)
    assert found["4"] == (1.5, 4.0)


def test_the_title_gives_the_shapes():
    (axes,) = plot_patch_grid(picture(3), (3, 4), show_numbers=False).axes
    assert axes.get_title() == "[6, 12, 3] in patches of 3 x 4: 2 rows x 3 columns = 6 tokens"
    assert not axes.texts


@pytest.mark.parametrize("channels", [1, 3])
def test_the_strip_is_the_patch_as_the_projection_reads_it(channels):
    import torch

    from vitrail.model.tokens import patchify

    image = picture(channels)
    strip = plot_token_strip(image, (3, 4), 5).axes[2]
    (drawn,) = strip.images
    flat = patchify(torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float(), (3, 4))[0, 4]
    np.testing.assert_array_equal(np.asarray(drawn.get_array())[0], flat.numpy())
    assert strip.get_title() == f"token 5 before projection: 3 x 4 x {channels} = [{12 * channels}] numbers"


def test_the_patch_itself_is_the_one_framed():
    whole, one, _ = plot_token_strip(picture(3), (3, 4), 6).axes
    np.testing.assert_array_equal(one.images[0].get_array(), picture(3)[3:, 8:])
    (frame,) = whole.patches
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((7.5, 2.5), 4, 3)


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(UsageError, match=r"The image width 12 is not a multiple of the patch width 5\."):
        plot_patch_grid(picture(), (3, 5))
    with pytest.raises(UsageError, match=r"lie in 1\.\.6 for 2 x 3 patches\. Got 7\."):
        plot_token_strip(picture(), (3, 4), 7)
    with pytest.raises(UsageError, match=r"Got 0\."):
        plot_token_strip(picture(), (3, 4), 0)
    with pytest.raises(UsageError, match=r"no colour map named 'virdis'\. Did you mean viridis"):
        plot_patch_grid(picture(), (3, 4), cmap="virdis")


def test_a_saved_figure_is_a_picture_and_always_the_same_bytes(tmp_path):
    for name in ("a.png", "b.png"):
        save_png(plot_patch_grid(picture(), (3, 4)), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as found:
        assert found.width == 1200
        assert len(set(found.convert("L").tobytes())) > 10


def test_nothing_global_of_matplotlib_is_touched():
    import sys

    before = "matplotlib.pyplot" in sys.modules
    plot_patch_grid(picture(), (3, 4))
    assert ("matplotlib.pyplot" in sys.modules) == before
