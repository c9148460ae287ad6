"""Tiles of large images: which patches they give, the same features as each tile alone, one score for an image."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.patch_bank import mean_largest
from vitrail.model.tiling import Tiling
from vitrail.model.vit import ViT, feature_names

TILED = ViTConfig(
    image_size=(16, 16), patch=(4, 4), width=24, depth=2, heads=2, mlp_width=48, outputs=1, pool="patches",
    head="bank", bank_size=50, tiles=(3, 2), tile_overlap=1,
)  # fmt: skip
WHOLE = dataclasses.replace(TILED, tiles=(1, 1))


def filled_model(config: ViTConfig) -> ViT:
    model = ViT(config, seed=1).eval()
    assert model.head.bank is not None
    rows = torch.randn(50, 24, generator=torch.Generator().manual_seed(2))
    model.head.bank.rows.copy_(torch.nn.functional.normalize(rows, dim=-1).half())
    return model


def images(n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, *TILED.input_size, generator=torch.Generator().manual_seed(3))


def test_tiles_overlap_and_make_one_grid():
    assert tuple(TILED.input_grid) == (10, 7) and TILED.input_size == (40, 28)  # 4 + 2 * 3 rows, 4 + 3 columns
    assert WHOLE.input_size == WHOLE.image_size and not WHOLE.is_tiled
    tiles = Tiling(TILED).cut(images())
    assert len(tiles) == 6 and all(tile.shape == (2, 3, 16, 16) for tile in tiles)
    assert torch.equal(tiles[3], images()[:, :, 12:28, 12:28])


def test_every_patch_is_that_of_the_tile_whose_centre_is_nearest():
    tiled, whole = filled_model(TILED), filled_model(WHOLE)
    with torch.no_grad():
        x = tiled.pooled(images()).unflatten(1, TILED.input_grid)  # [2, 10, 7, 24]
        tiles = [whole.pooled(tile).unflatten(1, whole.config.grid) for tile in Tiling(TILED).cut(images())]
    for row in range(10):
        for column in range(7):
            r = min(range(3), key=lambda k: abs(3 * k + 1.5 - row))
            c = min(range(2), key=lambda k: abs(3 * k + 1.5 - column))
            expected = tiles[2 * r + c][:, row - 3 * r, column - 3 * c]
            torch.testing.assert_close(x[:, row, column], expected, atol=1e-5, rtol=0)


def test_the_tiles_of_one_image_are_copied_at_a_time():
    held: list[int] = []

    def record(tiles: torch.Tensor) -> torch.Tensor:
        held.append(tiles.untyped_storage().nbytes())
        return tiles.mean((1, 2, 3))[:, None, None]

    tiling = Tiling(TILED)
    means = tiling.map_tiles(record, images(5))
    assert means.shape == (5, 6, 1, 1) and set(held) == {6 * 3 * 16 * 16 * 4}
    expected = torch.stack([tile.mean((1, 2, 3)) for tile in tiling.cut(images(5))], 1)
    torch.testing.assert_close(means[..., 0, 0], expected)


def test_the_score_is_the_mean_of_as_many_distances_as_in_one_tile():
    model = filled_model(TILED)
    with torch.no_grad():
        kept = model.features(images(), keep=("pooled", "distances", "outputs"))
        score = model(images())
    assert kept["distances"].shape == (2, 10, 7) and kept["pooled"].shape == (2, 70, 24)
    torch.testing.assert_close(kept["outputs"], score)
    torch.testing.assert_close(score[:, 0], kept["distances"].flatten(1).amax(1))  # a hundredth of 16 is one
    assert mean_largest(torch.arange(1000.0), 200).item() == pytest.approx(998.5)
    assert mean_largest(torch.arange(1000.0)).item() == pytest.approx(994.5)


def test_an_exported_graph_gives_the_same_for_any_number_of_images():
    model = filled_model(TILED)
    shapes = {"images": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(model, (images(3),), dynamic_shapes=shapes).module()
    for n in (1, 2, 5):
        with torch.no_grad():
            torch.testing.assert_close(program(images(n)), model(images(n)), atol=1e-5, rtol=0)


def test_what_tiles_cannot_do_is_said():
    with pytest.raises(UsageError, match='tiles need pool="patches", with head="bank" or outputs'):
        ViTConfig(tiles=(2, 2))
    with pytest.raises(UsageError, match=r"tile_overlap must lie in 0\.\.3 patches\. Got 4"):
        dataclasses.replace(TILED, tile_overlap=4)
    with pytest.raises(UsageError, match=r"takes images of 40x28 pixels only\. Got 16x16"):
        filled_model(TILED)(torch.zeros(1, 3, 16, 16))
    with pytest.raises(UsageError, match=r"no features called 'tokens'\. Known: pooled, distances, outputs"):
        filled_model(TILED).features(images(), keep=("tokens",))
    assert feature_names(filled_model(WHOLE))[0] == "embedded"
