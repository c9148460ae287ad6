"""One call for everything: rows, comparisons, the lines that people read, and the JSON of machines."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from plain_sums import averaging, pictures, shuffled_values
from vitrail.data.preprocess import normalize, preprocess_stack
from vitrail.data.sources.synthetic import GLYPHS, make_synthetic_images, make_synthetic_pairs
from vitrail.errors import UsageError
from vitrail.explain.attribution import target_scores
from vitrail.explain.faithfulness.benchmark import (
    FaithfulnessRequest,
    SyntheticTruth,
    decide_verdict,
    format_faithfulness,
    measure_faithfulness,
    paired_differences,
)
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec


def brightness(model, images, classes):
    """The true map of a model that sums brightness."""
    return images[:, 0, ::2, ::3]


def half_blind(model, images, classes):
    """The same, but for the left half, of which it says nothing."""
    maps = brightness(model, images, classes).clone()
    maps[:, :, : maps.shape[2] // 2] = -1
    return maps


def asked(count: int = 40, **more) -> FaithfulnessRequest:
    images = pictures(shuffled_values(count, 12), 3, 4)
    return FaithfulnessRequest(
        model=averaging(3, 4), images=images, classes=torch.zeros(count).long(), score=target_scores, **more
    )


def test_the_true_map_comes_first_and_every_verdict_is_what_the_areas_say():
    found = measure_faithfulness({"true": brightness, "half": half_blind}, asked(120, num_shuffled=0))
    assert [row.method for row in found.rows] == ["true", "half", "random", "centre", "edges"]
    assert [row.baseline for row in found.rows] == [False, False, True, True, True]
    assert found.rows[0].faithful[0].gap.value == pytest.approx(5.5)
    assert found.rows[0].faithful[0].deletion.value == pytest.approx(11 / 4)
    verdicts = {(one.first, one.second): one.verdict for one in found.compared}
    baselines = [(name, other) for name in ("true", "half") for other in ("random", "centre", "edges")]
    assert set(verdicts) == {("true", "half"), *baselines}
    assert all(verdicts[pair] == "truer" for pair in verdicts if pair[0] == "true")
    assert verdicts["half", "random"] == "truer"
    assert {one.way for one in found.compared[0].differences} == {"drop", "blur", "mean"}


@pytest.mark.wide
def test_two_equal_methods_cannot_be_told_apart_and_noise_neither():
    found = measure_faithfulness({"one": brightness, "other": brightness}, asked(num_shuffled=0))
    assert found.compared[0].verdict == "inconclusive"
    assert found.compared[0].differences[0].mean == 0
    wrong = measure_faithfulness({"upside down": lambda *given: -brightness(*given)}, asked(num_shuffled=0))
    assert wrong.compared[0].verdict == "less true"


def test_a_verdict_needs_every_way_to_agree():
    generator = np.random.default_rng(0)
    up, down = generator.normal(1, 0.1, 50), generator.normal(-1, 0.1, 50)
    zero = np.zeros(50)
    assert decide_verdict(paired_differences({"drop": up, "blur": up}, {"drop": zero, "blur": zero})) == "truer"
    assert (
        decide_verdict(paired_differences({"drop": up, "blur": down}, {"drop": zero, "blur": zero})) == "inconclusive"
    )
    unsure = generator.normal(0.05, 1, 50)
    assert (
        decide_verdict(paired_differences({"drop": up, "blur": unsure}, {"drop": zero, "blur": zero})) == "inconclusive"
    )
    assert decide_verdict(paired_differences({"drop": down}, {"drop": zero})) == "less true"


def test_an_interval_is_paired_and_draws_whole_groups():
    shared = np.random.default_rng(0).normal(0, 10, 60)
    (close,) = paired_differences({"drop": shared + 0.1}, {"drop": shared})
    assert close.is_significant and close.interval.high - close.interval.low < 1e-9
    patients = np.random.default_rng(1).normal(0, 1, 6).repeat(10)
    (alone,) = paired_differences({"drop": patients}, {"drop": np.zeros(60)})
    (grouped,) = paired_differences({"drop": patients}, {"drop": np.zeros(60)}, groups=np.arange(6).repeat(10))
    assert grouped.interval.high - grouped.interval.low > 2 * (alone.interval.high - alone.interval.low)


SPEC = ImageSpec(height=64, width=64, channels=1)


def matching(model, images, classes):
    """Finds the class's glyph by its shape: all relevance on the 2 x 2 patches where it fits best."""
    grey = images[:, 0].numpy()
    maps = np.zeros((len(grey), 8, 8))
    for picture, of, found in zip(grey, classes.tolist(), maps, strict=True):
        shape = GLYPHS[of] - GLYPHS[of].mean()
        fits = np.array([[(picture[8 * r :, 8 * c :][:16, :16] * shape).sum() for c in range(7)] for r in range(7)])
        row, column = np.unravel_index(fits.argmax(), fits.shape)
        found[row : row + 2, column : column + 2] = 1
    return maps


def blind(model, images, classes):
    """Bright patches, whatever the class."""
    return torch.nn.functional.avg_pool2d(images, 8)[:, 0] + 1


def planted_truth():
    shape = ViTConfig(image_size=(64, 64), patch=(8, 8), channels=1, width=8, depth=1, heads=2, mlp_width=8, outputs=4)
    planted = make_synthetic_images(32, 5, tag=True)
    known = SyntheticTruth(images=planted, pairs=make_synthetic_pairs(24, 6), spec=SPEC)
    images, classes = normalize(preprocess_stack(planted.images, SPEC), SPEC), torch.from_numpy(planted.targets)
    return measure_faithfulness(
        {"matching": matching, "bright": blind},
        FaithfulnessRequest(
            model=create_model(shape).eval(), images=images, classes=classes, synthetic=known, num_shuffled=4, points=3
        ),
    )


def test_planted_evidence_and_pictures_of_two_classes_tell_a_true_method_from_one_that_is_blind():
    first, second, random = planted_truth().rows[:3]
    assert first.located.pointing.value > 0.95 and first.located.in_box.value > 0.9
    assert first.located.own_class.value > 0.9 and first.located.class_correlation.value < 0.2
    assert second.located.own_class.value == pytest.approx(
        0.5
    ) and second.located.class_correlation.value == pytest.approx(1)
    assert random.located.own_class is None and random.shuffled is None
    assert random.located.in_box.value == pytest.approx(random.located.chance_box, abs=0.03)
    assert first.shuffled.value == pytest.approx(1), "it never looks at the model"


def test_the_lines_say_it_all_and_the_json_holds_it():
    found = planted_truth()
    text = format_faithfulness(found)
    lines = text.splitlines()
    assert lines[0] == "32 pictures of 64 patches; intervals are 95 %"
    assert lines[2].split("  ")[0] == "insertion less deletion" and "patches dropped" in lines[2]
    narrow = [" ".join(line.split()) for line in lines]
    assert "planted evidence pointing in box in mask on decoy on tag own class class correlation" in narrow
    assert "chance 6.2 % 6.2 % 2.7 % 2.7 %" in narrow and "a perfect map 100.0 % 100.0 % 43.8 %" in narrow
    assert any(line.startswith("matching") and "+1.000 (+1.000 to +1.000)" in line for line in lines)
    assert sum(line.startswith("bright cannot be distinguished from random: drop") for line in lines) == 1
    assert max(map(len, lines)) <= 140
    stored = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert stored["rows"][0]["located"]["pointing"]["value"] == found.rows[0].located.pointing.value
    assert "on_tag" in stored["rows"][0]["located"] and "own_class" not in stored["rows"][2]["located"]


@pytest.mark.wide
def test_maps_that_say_nothing_are_counted_and_named():
    def sometimes(model, images, classes):
        return brightness(model, images, classes) * (images[:, 0, 0, 0] % 2).view(-1, 1, 1)

    found = measure_faithfulness({"sometimes": sometimes}, asked(num_shuffled=4))
    flat = int((shuffled_values(40, 12)[:, 0] % 2 == 0).sum())
    assert found.rows[0].flat == flat and 5 < flat < 35 and found.rows[0].shuffled is not None
    assert format_faithfulness(found).splitlines()[-1] == (
        f"sometimes says nothing of {flat} pictures: the same everywhere"
    )
    never = measure_faithfulness({"never": lambda *given: torch.zeros(40, 3, 4)}, asked(num_shuffled=4)).rows[0]
    assert never.flat == 40 and never.shuffled is None and abs(never.faithful[0].gap.value) < 1.5


def test_a_method_that_fails_is_named():
    def broken(model, images, classes):
        return torch.full((40, 3, 4), torch.nan)

    with pytest.raises(UsageError, match=r"The method broken cannot be measured\. .*picture 0 has nan"):
        measure_faithfulness({"true": brightness, "broken": broken}, asked(num_shuffled=0))
    with pytest.raises(UsageError, match=r"none of them called random, centre, edges\. Got random\."):
        measure_faithfulness({"random": brightness}, asked())
    with pytest.raises(UsageError, match=r"Got none\."):
        measure_faithfulness({}, asked())
