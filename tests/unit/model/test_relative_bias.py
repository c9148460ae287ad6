"""Relative biases against the definition, pair by pair, and their resampling to another grid."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kinds import KINDS, images_for
from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.positions import RelativeBias, relative_bias_rows, resample_matrix, resample_relative_bias
from vitrail.model.vit import create_model
from vitrail.spec import Grid

CONFIG = KINDS["relative bias, inner norms"]


def part(config: ViTConfig = CONFIG) -> RelativeBias:
    made = RelativeBias(config)
    torch.nn.init.normal_(made.table, generator=torch.Generator().manual_seed(3))
    return made


def row_of(made: RelativeBias, query: int, key: int, grid: Grid) -> int:
    """The table row of a pair of tokens; patches are numbered in reading order behind the class token."""
    offsets = (2 * grid.rows - 1) * (2 * grid.columns - 1)
    if query < made.prefix or key < made.prefix:
        return offsets + (2 if query == key else 1 if key == 0 else 0)
    here, there = divmod(query - made.prefix, grid.columns), divmod(key - made.prefix, grid.columns)
    down, right = here[0] - there[0], here[1] - there[1]
    return (down + grid.rows - 1) * (2 * grid.columns - 1) + right + grid.columns - 1


@pytest.mark.parametrize("class_token", [True, False])
def test_the_bias_is_that_of_the_double_loop(class_token: bool) -> None:
    made = part(dataclasses.replace(CONFIG, class_token=class_token, pool="mean"))
    grid, T = made.grid, made.prefix + made.grid.patches
    expected = torch.stack([torch.stack([made.table[row_of(made, t, s, grid)] for s in range(T)]) for t in range(T)])
    assert torch.equal(made(grid)[0], expected.permute(2, 0, 1))


def test_patches_that_are_left_out_take_their_rows_with_them() -> None:
    made, visible = part(), torch.tensor([[0, 3, 7], [5, 1, 2]])
    whole, some = made(made.grid)[0], made(made.grid, visible)
    for image, chosen in enumerate(visible.tolist()):
        tokens = [0, *(patch + 1 for patch in chosen)]
        assert torch.equal(some[image], whole[:, tokens][:, :, tokens])


@pytest.mark.parametrize("attention", ["open", "fused"])
def test_the_weights_of_a_model_are_the_softmax_of_products_and_bias(attention: str) -> None:
    config = dataclasses.replace(CONFIG, depth=1, attention=attention)
    model, images = create_model(config, 4).eval(), images_for(config)
    block, x = model.encoder.blocks[0], model.embed(images)[0]
    with torch.no_grad():
        q, k, v = block.attention._project_heads(block.norm1(x), model.embed(images)[1])
        weights = (q @ k.mT * config.head_dim**-0.5 + block.attention.relative_bias(config.grid)).softmax(-1)
        attended = block.attention.out(block.attention.norm((weights @ v).transpose(1, 2).flatten(2)))
        found = model.features(images, keep=["blocks.0.attention"])["blocks.0.attention"]
        torch.testing.assert_close(found, weights, atol=1e-6, rtol=0)
        torch.testing.assert_close(block.attention(block.norm1(x), model.embed(images)[1]), attended, atol=1e-6, rtol=0)


def test_another_grid_keeps_the_rows_of_the_class_token_and_of_small_offsets() -> None:
    made = part()
    old, new = made.grid, Grid(5, 6)
    table = resample_relative_bias(made.table, old, new, "geometric")
    assert len(table) == 9 * 11 + 3 and torch.equal(table[-3:], made.table[-3:])
    centre = made.table[(2 * old.rows - 1) * (2 * old.columns - 1) // 2]
    torch.testing.assert_close(table[9 * 11 // 2], centre)
    model = create_model(CONFIG).eval()
    assert model(torch.randn(2, 2, 20, 12)).shape == (2, 3)


def test_geometric_places_keep_the_middle_and_spread_to_the_border() -> None:
    matrix = resample_matrix(5, 9, "geometric")
    torch.testing.assert_close(matrix.sum(1), torch.ones(9))
    assert matrix[4, 2] == 1 and matrix[3, 1] == matrix[5, 3] == 1  # offsets 0, -1, 1 keep their values
    torch.testing.assert_close(matrix.flip(0, 1), matrix)
    assert torch.equal(resample_matrix(1, 3, "geometric"), torch.ones(3, 1))


def test_a_table_has_a_row_for_every_offset_and_three_for_the_class_token() -> None:
    assert relative_bias_rows(CONFIG) == len(part().table) == 5 * 7 + 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"registers": 2}, "registers=0"),
        ({"relative": 1}, "relative=0"),
        ({"positions": "learned", "resample": "geometric"}, "needs another one"),
    ],
)
def test_combinations_without_a_meaning_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(CONFIG, **changes)
