"""Relative positions against the definition, pair by pair."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from kinds import TINY, images_for
from vitrail.model.attention import RelativePositions
from vitrail.model.vit import create_model
from vitrail.spec import Grid


def part(distance: int, head: int, prefix: int) -> RelativePositions:
    made = RelativePositions(distance, head, prefix)
    for parameter in made.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
    return made


def row_and_column(made: RelativePositions, looking: int, looked_at: int, grid: Grid) -> tuple[int, int]:
    """Table rows of a pair of tokens; patches are numbered in reading order behind the prefix."""
    if looking < made.prefix or looked_at < made.prefix:
        return 0, 0
    here, there = divmod(looking - made.prefix, grid.columns), divmod(looked_at - made.prefix, grid.columns)
    k = made.distance
    rows, columns = (max(-k, min(k, b - a)) + k + 1 for a, b in zip(here, there, strict=True))
    return rows, columns


def slow(made: RelativePositions, q: Tensor, weights: Tensor, tokens: list[list[int]], grid: Grid):
    """Scores and values by a loop over all pairs. `tokens` numbers every token of every picture."""
    scores, values = torch.zeros_like(weights), torch.zeros_like(q)
    for b, order in enumerate(tokens):
        for t, looking in enumerate(order):
            for s, looked_at in enumerate(order):
                r, c = row_and_column(made, looking, looked_at, grid)
                scores[b, :, t, s] = q[b, :, t] @ (made.key_rows[r] + made.key_columns[c])
                values[b, :, t] += weights[b, :, t, s, None] * (made.value_rows[r] + made.value_columns[c])
    return scores, values


@pytest.mark.parametrize("distance", [1, 2, 7])
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_scores_and_values_are_those_of_the_double_loop(distance, prefix):
    grid, made = Grid(3, 4), part(distance, 6, prefix)
    T = prefix + grid.patches
    q, weights = torch.randn(2, 2, T, 6), torch.rand(2, 2, T, T)
    with torch.no_grad():
        scores, values = slow(made, q, weights, [list(range(T))] * 2, grid)
        torch.testing.assert_close(made.scores(q, grid), scores, atol=1e-5, rtol=0)
        torch.testing.assert_close(made.values(weights, grid), values, atol=1e-5, rtol=0)


@pytest.mark.parametrize("prefix", [0, 2])
def test_visible_patches_keep_their_places(prefix):
    grid, made = Grid(3, 4), part(2, 6, prefix)
    visible = torch.tensor([[7, 0, 11], [3, 4, 5]])
    tokens = [[*range(prefix), *(prefix + i for i in row)] for row in visible.tolist()]
    T = prefix + 3
    q, weights = torch.randn(2, 2, T, 6), torch.rand(2, 2, T, T)
    with torch.no_grad():
        scores, values = slow(made, q, weights, tokens, grid)
        torch.testing.assert_close(made.scores(q, grid, visible), scores, atol=1e-5, rtol=0)
        torch.testing.assert_close(made.values(weights, grid, visible), values, atol=1e-5, rtol=0)


def test_gradients_are_those_of_the_double_loop():
    grid, found = Grid(2, 3), []
    q, weights = torch.randn(1, 2, 7, 4), torch.rand(1, 2, 7, 7)
    for fast in (True, False):
        made = part(1, 4, 1)
        answer = (
            (made.scores(q, grid), made.values(weights, grid))
            if fast
            else slow(made, q, weights, [list(range(7))], grid)
        )
        sum((one * torch.arange(one.numel()).reshape(one.shape).cos()).sum() for one in answer).backward()
        found.append([parameter.grad for parameter in made.parameters()])
    for fast, looped in zip(*found, strict=True):
        torch.testing.assert_close(fast, looped, atol=1e-4, rtol=1e-5)


def test_tables_in_separate_halves_of_the_head_are_a_case_of_ours():
    """The published two-dimensional form joins a column vector and a row vector of half a head each."""
    grid, made = Grid(3, 3), part(2, 8, 1)
    with torch.no_grad():
        made.key_columns[:, 4:], made.key_rows[:, :4] = 0, 0
        q = torch.randn(1, 2, 10, 8)
        joined = torch.empty(10, 10, 8)
        for t in range(10):
            for s in range(10):
                r, c = row_and_column(made, t, s, grid)
                joined[t, s] = torch.cat([made.key_columns[c, :4], made.key_rows[r, 4:]])
        torch.testing.assert_close(made.scores(q, grid), torch.einsum("batd,tsd->bats", q, joined), atol=1e-5, rtol=0)


def test_gradients_with_dropped_patches_have_the_same_bits_on_two_threads():
    config = dataclasses.replace(
        TINY, image_size=(28, 28), patch=(4, 4), channels=1, width=96, heads=3, relative=2, depth=1
    )
    images, visible = images_for(config, 32), torch.rand(32, 49).argsort(1)[:, :24]
    found = []
    for _ in range(4):
        model = create_model(config)
        model(images, visible).square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert all(torch.equal(found[0], other) for other in found[1:])
