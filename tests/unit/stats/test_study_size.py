"""Studies of the proposed size have the width, or the power, that was asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtri

from vitrail.stats.auc import roc_auc_with_influence
from vitrail.stats.intervals import effective_count, proportion_interval, wilson_interval, wilson_interval_of_share
from vitrail.stats.paired import sign_flip_test
from vitrail.stats.study_size import (
    count_for_difference,
    count_for_roc_auc,
    count_for_share,
    mean_design_effect,
    roc_auc_reach,
)

STUDIES = 200


@pytest.mark.parametrize(("share", "reach"), [(0.95, 0.03), (0.8, 0.05), (0.99, 0.01), (0.5, 0.02)])
def test_the_interval_of_a_share_is_as_wide_as_asked_and_of_one_image_less_wider(share, reach):
    n = count_for_share(share, reach)
    widths = []
    for seed in range(STUDIES):
        low, high = wilson_interval(int(np.random.default_rng(seed).binomial(n, share)), n)
        widths.append((high - low) / 2)
    assert np.mean(widths) == pytest.approx(reach, rel=0.03)
    half = [(high - low) / 2 for low, high in (wilson_interval_of_share(share, count) for count in (n - 1, n))]
    assert half[0] > reach >= half[1]


@pytest.mark.parametrize("area", [0.75, 0.9, 0.97])
@pytest.mark.parametrize("prevalence", [0.1, 0.5])
def test_the_interval_of_an_area_is_as_wide_as_asked(area, prevalence):
    n = count_for_roc_auc(area, 0.02, prevalence)
    assert roc_auc_reach(area, n, prevalence) <= 0.02 < roc_auc_reach(area, round(0.98 * n), prevalence)
    positive = np.arange(n) < round(n * prevalence)
    apart = math.sqrt(2) * ndtri(area)
    widths = []
    for seed in range(STUDIES // 10):
        scores = np.random.default_rng(seed).normal(0, 1, n) + apart * positive
        low, high = roc_auc_with_influence(positive, scores).interval()
        widths.append((high - low) / 2)
    assert np.mean(widths) == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize(("difference", "discordance", "size"), [(0.03, 0.1, 1), (0.05, 0.2, 1), (0.05, 0.2, 4)])
def test_a_difference_is_seen_as_often_as_asked(difference, discordance, size):
    """With groups all images of a group fall together, so a group is worth one image."""
    n = count_for_difference(difference, discordance, 0.8, design_effect=size)
    chances = [(discordance + difference) / 2, (discordance - difference) / 2, 1 - discordance]
    seen = 0
    for seed in range(STUDIES):
        drawn = np.random.default_rng(seed).choice([1.0, -1.0, 0.0], math.ceil(n / size), p=chances)
        seen += sign_flip_test(drawn, None, seed) < 0.05
    assert abs(seen / STUDIES - 0.8) < 0.03 + 2 * math.sqrt(0.16 / STUDIES)  # 3 points, and the luck of 200 draws


def test_how_alike_the_images_of_a_group_are_is_measured():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(2000), 4)
    alone = (generator.random(8000) < 0.8).astype(float)
    together = np.repeat((generator.random(2000) < 0.8).astype(float), 4)
    half = np.where(generator.random(8000) < math.sqrt(0.5), together, alone)  # correlation 0.5
    assert mean_design_effect(alone, groups) == pytest.approx(1, abs=0.1)
    assert mean_design_effect(half, groups) == pytest.approx(1 + 3 * 0.5, abs=0.25)
    assert mean_design_effect(together, groups) == pytest.approx(4, abs=0.1)
    assert mean_design_effect(np.ones(8), np.arange(8) // 4) == 1


def test_groups_count_in_a_planned_interval_as_they_do_in_a_measured_one():
    groups = np.repeat(np.arange(300), 3)
    mask = np.ones(900, bool)
    mask[:45] = False
    low, high = proportion_interval(mask, groups)
    assert count_for_share(0.95, (high - low) / 2) == effective_count(groups) == 300
