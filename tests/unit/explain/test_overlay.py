"""A map over its picture: what is coloured, what is left as it is, and what the bar says."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from vitrail.errors import UsageError
from vitrail.explain.figures import save_png
from vitrail.explain.map_scale import normalize_map
from vitrail.explain.overlay import (
    OverlayCaption,
    blend_colors,
    colorize_map,
    enlarge_pixels,
    map_colors,
    plot_overlay,
    to_rgb,
    upsample_map,
)

CAPTION = OverlayCaption("dress, 97.3%", ("relevance · blocks 0 to 7", "An honest line."), "share of attention")
HEAT = np.array([[0, 1, 2], [4, 0, 0]], np.float32)


def picture(channels: int = 3, height: int = 8, width: int = 12) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


def test_a_map_is_shown_as_shares_of_its_largest_value():
    mixed = np.array([[-2, 1], [0, 4]], np.float32)
    assert normalize_map(mixed, "positive").tolist() == [[0, 0.25], [0, 1]]
    assert normalize_map(mixed, "signed").tolist() == [[-0.5, 0.25], [0, 1]]
    np.testing.assert_allclose(normalize_map(mixed, "range"), [[0, 0.5], [1 / 3, 1]])
    assert normalize_map(mixed / 8, "cosine").tolist() == [[-0.25, 0.125], [0, 0.5]]


@pytest.mark.parametrize("scale", ["positive", "signed", "range", "cosine"])
def test_hidden_patches_are_not_drawn_and_do_not_set_the_scale(scale):
    heat = np.array([[1, 2], [100, 4]], np.float32)
    shown = normalize_map(heat, scale, np.array([[False, False], [True, False]]))
    assert shown[1, 0] == 0 and shown[1, 1] == 1


def test_of_many_patches_the_largest_hundredth_is_in_full_strength():
    """One patch of a large model holds a hundred times what others do: it must not silence the picture."""
    heat = np.linspace(0.5, 1, 400, dtype=np.float32).reshape(20, 20)
    heat[3, 4], heat[7, 8], few = 100, 50, np.linspace(0, 1, 99, dtype=np.float32).reshape(9, 11)
    shares = normalize_map(heat, "positive")
    assert shares.max() == 1 and (shares == 1).sum() == 5 and shares.min() > 0.45
    signed = normalize_map(-heat, "signed")
    assert signed.min() == -1 and (signed == -1).sum() == 5
    np.testing.assert_allclose(normalize_map(few, "positive"), few)
    sparse = np.zeros((20, 20), np.float32)
    sparse[0, 0] = 3
    assert normalize_map(sparse, "positive")[0, 0] == 1 and normalize_map(sparse, "positive").sum() == 1
    labels = [
        label.get_text()
        for label in plot_overlay(picture(3, 20, 20), heat, "positive", (1, 1), CAPTION).axes[3].get_yticklabels()
    ]
    assert labels[2].startswith("\u2265 1")


def test_X14_the_picture_is_untouched_where_the_map_is_silent():
    image = picture()
    shares = np.zeros((8, 12), np.float32)
    shares[2, 3] = 0.5
    for scale in ("positive", "signed"):
        mixed = blend_colors(image, shares, scale)
        changed = (mixed != image).any(-1)
        assert changed[2, 3] and changed.sum() == 1
        np.testing.assert_array_equal(blend_colors(image, shares, scale, opacity=0), image)


def test_a_full_share_at_full_opacity_is_the_colour_itself():
    shares = np.ones((8, 12), np.float32)
    wanted = np.round(255 * map_colors(shares, "positive"))
    np.testing.assert_array_equal(blend_colors(picture(), shares, "positive", opacity=1), wanted)


def test_stronger_is_brighter_and_the_two_sides_differ_in_blue():
    ramp = map_colors(np.linspace(0, 1, 64, dtype=np.float32), "positive")
    brightness = ramp @ (0.2126, 0.7152, 0.0722)
    assert (np.diff(brightness) > 0).all()
    against, for_ = map_colors(np.array([-1, 1], np.float32), "signed")
    assert against[2] > 0.9 and for_[2] < 0.2 and for_[0] > 0.9


def test_a_map_alone_has_the_colours_of_the_overlay_and_grey_between_two_sides():
    shares = np.array([[0, 0.5, 1]], np.float32)
    np.testing.assert_array_equal(colorize_map(shares, "range"), np.round(255 * map_colors(shares, "range")))
    two = colorize_map(np.array([[-1, 0, 1]], np.float32), "signed")
    assert two[0, 1].tolist() == [128] * 3
    np.testing.assert_array_equal(two[0, [0, 2]], np.round(255 * map_colors(np.array([-1, 1], np.float32), "signed")))


def test_between_centres_of_patches_the_map_is_spread_evenly():
    spread = upsample_map(HEAT / 4, (8, 12), (4, 4), (8, 12))
    assert spread.shape == (8, 12)
    assert spread[0, 0] == 0 and spread[7, 0] == 1
    np.testing.assert_allclose(spread[0, 1:6], [0, 0.25 * 0.125, 0.25 * 0.375, 0.25 * 0.625, 0.25 * 0.875])
    padded = upsample_map(HEAT, (7, 10), (4, 4), (21, 30), smooth=False)
    assert padded.shape == (21, 30), "what lies in the padding is not drawn"
    np.testing.assert_array_equal(padded, HEAT.repeat(12, 0).repeat(12, 1)[:21, :30])


def test_a_map_is_drawn_in_the_shape_of_the_picture_and_not_of_the_model():
    wide = upsample_map(HEAT, (8, 12), (4, 4), (20, 60), smooth=False)
    np.testing.assert_array_equal(wide, HEAT.repeat(10, 0).repeat(20, 1))
    own = picture(3, 600, 1800)
    figure = plot_overlay(picture(), HEAT, "positive", (4, 4), CAPTION, opacity=0, original_image=own)
    seen, mixed, alone, _ = figure.axes
    for axes in (seen, mixed, alone):
        box = axes.get_window_extent()
        assert box.width / box.height == pytest.approx(3, rel=0.01)
    np.testing.assert_array_equal(np.asarray(mixed.images[0].get_array()), own)
    assert np.asarray(seen.images[0].get_array()).shape == (480, 720, 3)
    assert seen.get_aspect() == "auto"


def test_small_pictures_are_enlarged_by_whole_steps():
    image = to_rgb(picture(1))
    large = enlarge_pixels(image)
    assert large.shape == (480, 720, 3)
    np.testing.assert_array_equal(large[30::60, 30::60], image)
    assert enlarge_pixels(np.zeros((500, 700, 3), np.uint8)).shape == (500, 700, 3)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_the_left_picture_is_the_one_the_model_sees(channels):
    image = picture(channels)
    left, right, alone, _ = plot_overlay(image, HEAT, "positive", (4, 4), CAPTION).axes
    drawn = np.asarray(left.images[0].get_array())
    np.testing.assert_array_equal(drawn[30::60, 30::60], image if channels == 3 else image[..., :1].repeat(3, 2))
    assert (np.asarray(right.images[0].get_array()) != drawn).any()
    patches = np.asarray(alone.images[0].get_array())[120::240, 120::240]
    np.testing.assert_array_equal(patches, colorize_map(HEAT / 4, "positive"))
    assert len(np.unique(patches.reshape(-1, 3), axis=0)) == 4


@pytest.mark.parametrize(
    ("scale", "labels"),
    [
        ("positive", ["0", "2", "4"]),
        ("signed", ["-4", "0", "4"]),
        ("cosine", ["-1", "0", "1"]),
        ("range", ["0", "2", "4"]),
    ],
)
def test_X14_the_bar_has_its_three_marks_at_fixed_places(scale, labels):
    bar = plot_overlay(picture(), HEAT, scale, (4, 4), CAPTION).axes[3]
    assert bar.get_yticks().tolist() == [0, 0.5, 1]
    assert [label.get_text() for label in bar.get_yticklabels()] == labels


def test_X15_every_word_of_the_caption_is_there_and_nothing_leaves_the_paper():
    for height, width in ((8, 12), (24, 6), (4, 24)):
        long = OverlayCaption("a class with quite a name " * 4, (*CAPTION.below, "many words " * 30), CAPTION.unit)
        for caption in (CAPTION, long):
            figure = plot_overlay(picture(3, height, width), HEAT, "positive", (height // 2, width // 3), caption)
            said = [text.get_text() for text in figure.texts]
            names = (
                f"what the model sees: {height} \u00d7 {width} pixels", "the picture under its map",
                "the map: 2 \u00d7 3 patches",
            )  # fmt: skip
            wanted = (caption.title, *names, *caption.below)
            assert sorted(" ".join(said).split()) == sorted(" ".join(wanted).split())
            assert figure.axes[3].get_ylabel() == "share of attention"
            renderer = FigureCanvasAgg(figure).get_renderer()
            for text in figure.texts:
                box = text.get_window_extent(renderer)
                assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height
                assert not any(box.overlaps(axes.get_window_extent(renderer)) for axes in figure.axes)
            unit = figure.axes[3].yaxis.label.get_window_extent(renderer)
            assert unit.x1 <= figure.bbox.width
            assert not any(unit.overlaps(mark.get_window_extent(renderer)) for mark in figure.axes[3].get_yticklabels())


def test_the_same_map_gives_the_same_file_with_a_description(tmp_path):
    for name in ("a.png", "b.png"):
        save_png(plot_overlay(picture(), HEAT, "positive", (4, 4), CAPTION), tmp_path / name, "A dress.")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as found:
        assert found.text["Description"] == "A dress."
        assert found.width > 800


def test_an_opacity_that_is_none_is_refused():
    with pytest.raises(UsageError, match=r"opacity must lie in 0\.\.1\. Got 1\.5\."):
        plot_overlay(picture(), HEAT, "positive", (4, 4), CAPTION, opacity=1.5)
