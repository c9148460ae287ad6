"""The position figure: tables as they are, and likeness as it should fall off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitrail.errors import UsageError
from vitrail.explain.figures import cosine_similarities, plot_positions
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model

TINY = ViTConfig(image_size=(8, 12), patch=(4, 4), channels=1, width=16, depth=1, heads=2, mlp_width=16, outputs=2)


@pytest.mark.parametrize("kind", ["learned", "indexed", "sinusoid", "sincos2d"])
@pytest.mark.parametrize("class_token", [True, False])
def test_the_table_is_drawn_as_it_is(kind, class_token):
    model = create_model(
        replace(TINY, positions=kind, class_token=class_token, pool="class" if class_token else "mean")
    )
    table = plot_positions(model).axes[0]
    np.testing.assert_array_equal(np.asarray(table.images[0].get_array()), model.positions.table.detach().numpy())
    kept = "trained" if kind in ("learned", "indexed") else "fixed"
    assert table.get_title() == f"{kind} positions ({kept}): [{6 + class_token}, 16]"


def test_X12_every_place_is_most_like_itself():
    model = create_model(replace(TINY, positions="sincos2d"))
    tiles = np.asarray(plot_positions(model).axes[1].images[0].get_array().filled(np.nan))
    assert tiles.shape == (2 * 3 - 1, 3 * 4 - 1)
    for row in range(2):
        for column in range(3):
            tile = tiles[3 * row : 3 * row + 2, 4 * column : 4 * column + 3]
            assert np.unravel_index(tile.argmax(), tile.shape) == (row, column)
            assert tile.max() == pytest.approx(1)


@pytest.mark.parametrize(("kind", "title"), [("axial", "axial rotary"), ("from-one", "from-one rotary")])
def test_a_model_with_rotation_alone_shows_its_angles_and_says_so(kind, title):
    model = create_model(replace(TINY, positions="none", rotary=kind))
    axes = plot_positions(model).axes[0]
    assert axes.get_title() == f"{title} positions: angles of [6, 4], radians"
    tables = model.rotary(TINY.grid, model.tokens.cls)
    angles = np.asarray(axes.images[0].get_array())
    second = slice(1, None, 2) if kind == "from-one" else slice(4, None)  # of each pair; its sine is the positive one
    np.testing.assert_allclose(np.cos(angles), tables.cos.detach().numpy()[1:, second], atol=1e-6)
    np.testing.assert_allclose(np.sin(angles), tables.sin.detach().numpy()[1:, second], atol=1e-6)


def test_a_large_grid_shows_every_third_place():
    model = create_model(replace(TINY, image_size=(8, 160), positions="sincos2d"))
    assert "1 x 14 places, 2 x 40 each, every 3. row and column" in plot_positions(model).axes[1].get_title()


def test_cosines_of_known_vectors():
    found = cosine_similarities(np.array([[1.0, 0], [0, 2], [3, 3], [0, 0]]))
    assert found[0].tolist() == pytest.approx([1, 0, 0.5**0.5, 0])


def test_a_model_without_positions_is_refused():
    with pytest.raises(UsageError, match="adds no table and rotates nothing"):
        plot_positions(create_model(replace(TINY, positions="none")))
    with pytest.raises(UsageError, match="no colour map named 'cividi'"):
        plot_positions(create_model(TINY), cmap="cividi")
