"""The border test: covered pixels, the rule of the alarm, and planted pictures with and without a tag."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import glyphs
from unit.evaluate.test_primary_metric import classes, labels, numbers
from vitrail.data.preprocess import normalize
from vitrail.data.sources import synthetic
from vitrail.errors import DataError
from vitrail.evaluate.decisions import predictions_from_outputs
from vitrail.evaluate.inference import MaskedModel
from vitrail.evaluate.shortcut_reliance import ShortcutReport, border_mask, compare_regions

SEEDS = 20


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Probes are many small steps, which a second thread only slows down."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(2)


def test_the_border_is_the_outer_eighth_of_each_side():
    found = border_mask(64, 80)
    assert found.sum() == 64 * 80 - 48 * 60 and not found[8:56, 10:70].any()
    assert border_mask(8, 8).sum() == 28 and border_mask(4, 4).sum() == 12


def test_covered_pixels_change_nothing_and_the_mode_stays():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)).eval()
    shown = border_mask(8, 8)
    seen = MaskedModel(model, shown)
    images = torch.randn(2, 1, 8, 8)
    other = torch.where(torch.from_numpy(shown), images, torch.randn(2, 1, 8, 8))
    assert torch.equal(seen(images), seen(other)) and not torch.equal(model(images), model(other))
    assert torch.equal(seen(images), model(images * torch.from_numpy(shown)))
    assert not seen.training and not model.training


def asked(model: nn.Module, made: synthetic.SyntheticImages):
    images = normalize(torch.from_numpy(made.images)[:, None], glyphs.SPEC)
    with torch.inference_mode():
        logits = model(images).numpy()
    rows = [("", str(number)) for number in range(len(images))]
    return predictions_from_outputs("classification", logits, synthetic.CLASSES, None, rows, "test", made.targets)


def looked_at(seed: int, tag: bool) -> ShortcutReport:
    """A stand-in learns from 160 pictures and is looked at with 120 others."""
    made, held = (
        synthetic.make_synthetic_images(160, seed=seed, tag=tag),
        synthetic.make_synthetic_images(120, seed=1000 + seed, tag=tag),
    )
    model, outer = glyphs.StandIn(made.images, made.targets), border_mask(64, 64)
    parts = [MaskedModel(model, shown) for shown in (outer, ~outer)]
    return compare_regions(asked(model, held), *(asked(part, held) for part in parts))


@pytest.mark.parametrize("tag", [True, False])
def test_V11_a_planted_tag_raises_the_alarm_and_nothing_else_does(tag):
    found = [looked_at(seed, tag) for seed in range(SEEDS)]
    assert sum(one.alarm == tag for one in found) >= 19
    assert min(one.whole for one in found) > 0.8
    assert all(one.guess == 0.25 for one in found)


def shares(whole: float, outer: float, middle: float, n: int = 400) -> ShortcutReport:
    """What is judged of two equally frequent classes with these accuracies."""
    truth = np.arange(n) % 2
    parts = []
    for share in (whole, outer, middle):
        right = np.arange(n) < round(share * n)
        said = np.where(right, truth, 1 - truth)
        one = classes(np.ones(n, bool), truth)
        parts.append(type(one)(**{**vars(one), "probabilities": np.eye(2, dtype=np.float32)[said]}))
    return compare_regions(*parts)


@pytest.mark.parametrize(
    ("whole", "outer", "alarm"),
    [
        (0.95, 0.90, True),
        (0.95, 0.62, True),  # just over a quarter of what is known beyond 0.5
        (0.95, 0.60, False),
        (0.95, 0.50, False),
        (0.58, 0.57, False),  # most of it, but little
        (0.50, 0.50, False),
    ],
)
def test_the_alarm_needs_much_and_most_of_what_the_model_knows(whole, outer, alarm):
    found = shares(whole, outer, 0.9)
    assert found.alarm is alarm
    assert ("ALARM" in found.table()) is alarm
    assert found.guess == 0.5 and found.whole == pytest.approx(whole)
    if whole == 0.95:
        assert found.kept_by_border == pytest.approx((outer - 0.5) / 0.45, abs=0.01)
        assert f"keeps {100 * found.kept_by_border:.0f} % of what" in found.table()
    if whole == 0.5:
        assert "not surely better than guessing" in found.verdict()


def test_few_pictures_raise_no_alarm():
    assert shares(0.9, 0.7, 0.5, n=10).alarm is False


def test_labels_are_judged_by_their_areas_and_numbers_by_their_errors():
    generator = np.random.default_rng(0)
    truth = (generator.random((300, 2)) < 0.4).astype(np.float32)
    noise = generator.random((300, 2)).astype(np.float32)
    told, blind = labels(truth, (noise + truth) / 2), labels(truth, noise)
    found = compare_regions(told, told, blind)
    assert found.alarm and found.guess == 0.5 and found.kept_by_border == 1 and abs(found.kept_by_centre) < 0.2
    assert not compare_regions(told, blind, told).alarm
    targets = generator.normal(size=(300, 1)).astype(np.float32)
    near, far = numbers(targets, targets + np.float32(0.1)), numbers(targets, np.zeros((300, 1), np.float32))
    found = compare_regions(near, near, far)
    assert found.alarm and found.guess == pytest.approx(np.abs(targets - targets.mean()).mean(), rel=1e-5)
    assert not compare_regions(near, far, near).alarm


def test_pictures_without_answers_are_refused():
    nothing = classes(np.ones(5, bool), np.full(5, -1))
    with pytest.raises(DataError, match=r"answers are known.*Got 0 pictures\."):
        compare_regions(nothing, nothing, nothing)
