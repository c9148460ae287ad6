"""Mixup and cutmix: pictures and targets in the same shares, drawn from the distribution that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import beta, kstest

from vitrail.data.augment.mixing import MIXING_DRAWS, apply_mixup_cutmix
from vitrail.randomness import uniform


def keys(n: int) -> np.ndarray:
    return uniform(0, "mix", 0, np.arange(n), MIXING_DRAWS)


def flat(n: int, height: int = 16, width: int = 20) -> torch.Tensor:
    """Picture i has the level i everywhere."""
    levels = (torch.arange(n) % 256).to(torch.uint8)
    return levels.view(n, 1, 1, 1).expand(n, 2, height, width).contiguous()


def test_mixup_by_hand():
    images = torch.randint(0, 256, (6, 3, 4, 5), dtype=torch.uint8)
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    mixed, soft = apply_mixup_cutmix(images, targets, keys(6), 0.4, 0.0, 4)
    order = np.argsort(keys(6)[:, 0])
    for place, row in enumerate(order):
        other = order[(place + 1) % 6]
        share = round(float(beta.ppf(keys(6)[row, 2], 0.4, 0.4)) * 256) / 256
        expected = np.floor(images[row].numpy() * share + images[other].numpy() * (1 - share) + 0.5)
        assert np.array_equal(mixed[row].numpy(), expected)
        hot = share * np.eye(4)[targets[row]] + (1 - share) * np.eye(4)[targets[other]]
        assert soft[row].numpy() == pytest.approx(hot, abs=1e-7)


def shares_of(alpha: float) -> np.ndarray:
    """What each picture keeps of itself, of those whose partner is of the other class."""
    targets = torch.eye(2)[torch.arange(4000) % 2]
    _, soft = apply_mixup_cutmix(flat(4000), targets, keys(4000), alpha, 0.0, 2)
    order = np.argsort(keys(4000)[:, 0])
    unlike = order[(order % 2) != (np.roll(order, -1) % 2)]
    return soft[unlike, unlike % 2].numpy().astype(float)


@pytest.mark.parametrize("alpha", [0.8, 1.0, 2.0])
def test_shares_of_mixup_follow_their_beta_distribution(alpha):
    shares = shares_of(alpha)
    between = shares + (np.random.default_rng(0).random(len(shares)) - 0.5) / 256  # shares are whole 256ths
    assert kstest(between, beta(alpha, alpha).cdf).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.4])
def test_shares_of_weak_mixup_have_the_mean_and_the_spread_of_theirs(alpha):
    shares = shares_of(alpha)
    assert shares.mean() == pytest.approx(0.5, abs=0.03)
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.06)


def test_cutmix_shows_two_pictures_and_counts_each_by_its_pixels():
    n = 200
    images, targets = flat(n), torch.arange(n)
    mixed, soft = apply_mixup_cutmix(images, targets, keys(n), 0.0, 1.0, n)
    for row in range(n):
        levels, counts = mixed[row, 0].unique(return_counts=True)
        assert row in levels or soft[row, row] == 0
        assert len(levels) <= 2
        for level, count in zip(levels.tolist(), counts.tolist(), strict=True):
            assert float(soft[row, level]) == pytest.approx(count / 320, abs=1e-6)
    assert soft.sum(1).numpy() == pytest.approx(np.ones(n), abs=1e-6)
    foreign = mixed[:, 0] != images[:, 0]
    assert torch.equal(foreign.any(2).sum(1) * foreign.any(1).sum(1), foreign.sum((1, 2)))  # one rectangle each


def test_cutmix_covers_half_of_the_picture_on_average_before_its_edge_cuts_it_off():
    _, soft = apply_mixup_cutmix(flat(250, 64, 64), torch.arange(250), keys(250), 0.0, 1.0, 250)
    kept = soft[torch.arange(250), torch.arange(250)]
    assert 0.55 < float(kept.mean()) < 0.75
    assert float(kept.min()) < 0.4 and float(kept.max()) > 0.95


def test_with_both_each_picture_goes_either_way():
    images = torch.randint(0, 256, (250, 1, 8, 8), dtype=torch.uint8)
    both = apply_mixup_cutmix(images, torch.arange(250), keys(250), 0.8, 1.0, 250)
    ways = [
        apply_mixup_cutmix(images, torch.arange(250), keys(250), *alphas, 250) for alphas in ((0.8, 0.0), (0.0, 1.0))
    ]
    first = keys(250)[:, 1] < 0.5
    assert 100 < first.sum() < 150
    for way, chosen in zip(ways, (first, ~first), strict=True):
        rows = torch.from_numpy(np.flatnonzero(chosen))
        assert torch.equal(both[0][rows], way[0][rows]) and torch.equal(both[1][rows], way[1][rows])


def test_how_much_and_where_do_not_depend_on_the_batch():
    images, targets = flat(40), torch.arange(40)
    _, whole = apply_mixup_cutmix(images, targets, keys(40), 0.0, 1.0, 40)
    _, part = apply_mixup_cutmix(images[:7], targets[:7], keys(40)[:7], 0.0, 1.0, 40)
    assert torch.equal(whole.diagonal()[:7], part.diagonal()[:7])


def test_a_picture_alone_is_mixed_with_itself():
    images = torch.randint(0, 256, (1, 3, 4, 4), dtype=torch.uint8)
    for alphas in ((0.8, 0.0), (0.0, 1.0)):
        mixed, soft = apply_mixup_cutmix(images, torch.tensor([2]), keys(1), *alphas, 3)
        assert torch.equal(mixed, images)
        assert torch.equal(soft, torch.tensor([[0.0, 0.0, 1.0]]))


def test_what_is_unknown_of_either_is_unknown_of_both():
    targets = torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [1.0, 0.0]])
    _, soft = apply_mixup_cutmix(flat(3), targets, keys(3), 0.8, 0.0, 2)
    order = np.argsort(keys(3)[:, 0]).tolist()
    before = order[order.index(1) - 1]
    assert soft[:, 0].isnan().tolist() == [row in (1, before) for row in range(3)]
    assert not soft[:, 1].isnan().any()


def test_one_hot_and_numbered_targets_are_the_same():
    images, targets = flat(9), torch.arange(9) % 3
    numbered = apply_mixup_cutmix(images, targets, keys(9), 0.8, 1.0, 3)
    hot = apply_mixup_cutmix(images, F.one_hot(targets, 3).float(), keys(9), 0.8, 1.0, 3)
    assert torch.equal(numbered[0], hot[0]) and torch.equal(numbered[1], hot[1])
