"""Planted evidence, learnt by `vitrail train` and explained by the doors: do maps lie on what makes the class?

Goals X4 to X7 (docs/true-maps.md), on pictures of which the truth is known pixel by pixel. What tells the classes
apart are the pixels in which their glyphs differ, and these are all pixels of a glyph's box: that is the mask here. The
ink, its bright pixels alone, covers 28 of the 64 pixels of every patch, so that no map of whole patches has more than
44 % on it.

The goals are asked of a training of 450 steps, which runs with --all. The short one is asked for what maps of a model
show that has just learnt to answer: the mass lies where it should, and patches go in a better order than by noise, but
relevance and rollout cannot be told apart yet. With other seeds the goals are not always met: docs/true-maps.md.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from vitrail.data.sources.synthetic import GLYPH, GLYPHS
from vitrail.explain.faithfulness.benchmark import FaithfulnessComparison, FaithfulnessReport, MethodResult
from vitrail.explain.methods import METHODS, default_method
from vitrail.predict.predictor import Predictor
from vitrail.services.evaluation import load_held_out
from vitrail.services.map_faithfulness import get_map_function, measure_faithfulness

pytestmark = pytest.mark.wide

SHAPE = ("--model.depth", "3", "--model.class_token", "true", "--model.pool", "class+mean")
LIMIT = 900
"""Seconds: two minutes on two cores that nobody else uses, and tests share theirs."""


class Case(NamedTuple):
    """A training, and what is asked of the default method's maps of its model."""

    steps: int
    threads: int
    pictures: int
    pointing: float
    in_box: float
    overlap: float
    own: float
    correlation: float
    truer: tuple[tuple[str, str], ...]
    """Pairs of methods of which the first must be truer, whatever stands where a patch was."""


NOISE = (("relevance", "random"), ("rollout", "random"))
CASES = {
    "short": Case(300, 2, 60, 0.85, 0.5, 0.4, 0.7, 0.3, NOISE),
    "long": Case(450, 1, 400, 0.98, 0.6, 0.5, 0.8, 0.2, (("relevance", "rollout"), *NOISE)),
}


class Measured(NamedTuple):
    """A case and what was found of it."""

    case: Case
    truth: FaithfulnessReport

    def row(self, method: str) -> MethodResult:
        return next(row for row in self.truth.rows if row.method == method)

    def compared(self, first: str, second: str) -> FaithfulnessComparison:
        return next(one for one in self.truth.compared if (one.first, one.second) == (first, second))


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """The default method and rollout, measured on pictures that the run has never shown its model."""
    from vitrail.cli.main import main

    case: Case = request.param
    run, threads = tmp_path_factory.mktemp("planted") / "run", torch.get_num_threads()
    compute = ("--compute.precision", "float32", "--compute.threads", str(case.threads))
    assert main(["train", "planted", *SHAPE, "--steps", str(case.steps), *compute, "--out", str(run)]) == 0
    torch.set_num_threads(threads)  # a training sets its own
    predictor = Predictor.open(run)
    assert (
        default_method(predictor.single_member().model.config) == "relevance" and not METHODS["rollout"].class_specific
    )
    methods = {name: get_map_function(name) for name in ("relevance", "rollout")}
    return Measured(
        case, measure_faithfulness(predictor, load_held_out(run, "test"), methods, num_images=case.pictures)
    )


def test_the_glyphs_differ_in_every_pixel_of_their_box_and_their_ink_in_less_than_half_of_every_patch():
    assert (GLYPHS[0] != GLYPHS).any(0).all() and GLYPHS.shape[1:] == (GLYPH, GLYPH)
    assert (GLYPHS.reshape(4, 2, 8, 2, 8).sum((2, 4)) == 28).all()


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_X4_the_default_map_lies_on_what_makes_the_class(found):
    at, random = found.row("relevance").located, found.row("random").located
    assert at.pointing.value >= found.case.pointing
    assert at.in_box.value >= found.case.in_box and at.overlap.value >= found.case.overlap
    assert at.in_mask.value >= found.case.in_box * at.best_mask and at.best_mask == pytest.approx(28 / 64)
    assert at.on_decoy.value < at.in_box.value / 5
    assert random.in_box.value <= random.chance_box + 0.02 and random.in_mask.value <= random.chance_mask + 0.02


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_X5_each_of_two_classes_has_a_map_of_its_own_and_rollout_has_one_for_both(found):
    at, blind = found.row("relevance").located, found.row("rollout").located
    assert at.own_class.value > found.case.own and at.class_correlation.value < found.case.correlation
    assert blind.own_class.value == pytest.approx(0.5) and blind.class_correlation.value == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_X6_the_default_is_truer_than_rollout_and_rollout_than_noise_whatever_stands_where_a_patch_was(found):
    for pair in found.case.truer:
        one = found.compared(*pair)
        assert one.verdict == "truer", one
        assert {each.way for each in one.differences} == {"drop", "blur", "mean"}
        assert all(each.interval.low > 0 for each in one.differences)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_X7_without_what_was_learnt_little_of_the_map_is_left(found):
    assert abs(found.row("relevance").shuffled.value) < 0.3
