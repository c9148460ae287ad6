"""X4 to X7: pictures whose evidence is known, learnt by our own `train planted`, and the maps of that run judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitrail.cli.main import main
from vitrail.doors.evaluation import held_out
from vitrail.doors.faithfulness import faithfulness, of_method
from vitrail.explain.methods import default_method
from vitrail.explain.truth.results import Compared, Row, Truth
from vitrail.predict.predictor import Predictor

pytestmark = pytest.mark.slow
STEPS = 200


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a person would type it, but for the number of steps."""
    before = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("runs") / "planted"
    assert main(["train", "planted", "--steps", str(STEPS), "--out", str(folder)]) == 0
    torch.set_num_threads(before)
    return folder


@pytest.fixture(scope="module")
def truth(run: Path) -> Truth:
    """The default method and rollout on 100 pictures that the run has held out."""
    predictor = Predictor.open(run)
    default = default_method(predictor.alone().model.config)
    methods = {name: of_method(name) for name in (default, "rollout")}
    return faithfulness(predictor, held_out(run, "test"), methods)


def row_of(truth: Truth, method: str) -> Row:
    return next(row for row in truth.rows if row.method == method)


def compared(truth: Truth, first: str, second: str) -> Compared:
    return next(one for one in truth.compared if (one.first, one.second) == (first, second))


def test_X4_the_default_map_points_at_the_glyph_and_has_its_relevance_there(truth):
    located, random = truth.rows[0].located, row_of(truth, "random").located
    assert located.pointing.value >= 0.98
    assert located.in_box.value >= 0.6, "on the glyph's patches"
    assert located.overlap.value >= 0.5
    assert located.on_decoy.value < located.in_mask.value / 4
    assert random.in_box.value <= random.chance_box + 0.02 and random.in_mask.value <= random.chance_mask + 0.02


def test_X5_the_map_of_a_class_lies_on_its_own_glyph_and_rollout_is_blind(truth):
    located, blind = truth.rows[0].located, row_of(truth, "rollout").located
    assert located.own_class.value > 0.8 and located.class_correlation.value < 0.2
    assert blind.class_correlation.value == pytest.approx(1) and blind.own_class.value == pytest.approx(0.5)


def test_X6_the_default_is_truer_than_rollout_and_rollout_than_noise_with_patches_really_dropped(truth):
    default = truth.rows[0].method
    for first, second in ((default, "rollout"), (default, "random"), ("rollout", "random")):
        drop = next(one for one in compared(truth, first, second).differences if one.way == "drop")
        assert drop.mean > 0 and drop.sure, (first, second, drop)
    assert compared(truth, default, "random").verdict == "truer"
    assert compared(truth, default, "rollout").verdict == "truer"


def test_X7_the_map_is_lost_with_the_weights(truth):
    assert abs(truth.rows[0].shuffled.value) < 0.3
