"""Models answer in float32 unless another number format is asked for, whatever a bundle was evaluated in."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from exportable import pictures
from served import reading, saved
from vitrail import config
from vitrail.checkpoints import bundle, bundle_weights
from vitrail.cli.main import main
from vitrail.errors import UsageError
from vitrail.evaluate.decisions import Decisions
from vitrail.evaluate.precision import COMPARISON_KEY, PRECISION_KEY, PrecisionComparison
from vitrail.predict.predictor import Predictor
from vitrail.services.embedding import open_embedder
from vitrail.services.prediction import open_predictor

MEASURED = PrecisionComparison(
    precision="bfloat16", device="cpu", task="classification", num_images=180, difference=0.0128, difference_99=0.0025,
    changed_decisions=2, changed_abstentions=1, crossed_thresholds=0, speedup=1.34,
)  # fmt: skip


def bundle_of(folder: Path, **info: object) -> Path:
    found = reading()
    bundle_weights.save_bundle(folder, found.model, found.spec, found.task, found.classes, info)
    return folder


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
def test_a_bundle_answers_in_float32_whatever_it_was_evaluated_in(tmp_path, stored):
    folder = bundle_of(tmp_path / "model", **{PRECISION_KEY: stored})
    found = open_predictor(folder, "cpu")
    images = pictures(found.spec)
    plain = Predictor([dataclasses.replace(reading(), decisions=Decisions())])
    expected = plain.predict(list(images)).probabilities
    np.testing.assert_array_equal(found.predict(list(images)).probabilities, expected)
    assert found.settings.precision == open_embedder(folder, "cpu").backbones[0].settings.precision == "float32"
    said = (
        () if stored == "float32" else (f"computed in {stored}, as older versions did; its predictions are computed",)
    )
    assert len(found.precision_notes) == len(said) and all(text in found.precision_notes[0] for text in said)


def test_the_fast_one_is_a_choice_with_its_price(tmp_path):
    folder = bundle_of(tmp_path / "model", **{PRECISION_KEY: "float32", COMPARISON_KEY: config.write(MEASURED)})
    fast = open_predictor(folder, "cpu", "bf16")
    assert fast.settings.precision == "bfloat16"
    assert open_embedder(folder, "cpu", precision="bf16").backbones[0].settings.precision == "bfloat16"
    (note,) = fast.precision_notes
    assert note == (
        "Computed in bfloat16. Measured when the model was trained: bfloat16 against float32 on 180 validation "
        "pictures: scores differ by up to 0.013, 99 % of them by at most 0.0025; 2 decisions and 1 abstention changed; "
        "1.3 times as fast (cpu)."
    )
    images = list(pictures(fast.spec))
    exact = fast.with_precision("float32")
    difference = np.abs(fast.predict(images).probabilities - exact.predict(images).probabilities).max()
    assert 0 < difference < 0.1 and exact.with_precision("float32") is exact and exact.precision_notes == ()


def test_an_ensemble_names_its_worst_model_and_an_older_one_that_nothing_was_measured(tmp_path):
    other = dataclasses.replace(MEASURED, difference=0.5)
    folders = [
        bundle_of(tmp_path / f"{number}", **{COMPARISON_KEY: config.write(each)})
        for number, each in enumerate((MEASURED, other))
    ]
    bundle.save_ensemble(tmp_path / "all", folders)
    (note,) = open_predictor(tmp_path / "all", "cpu", "bfloat16").precision_notes
    assert (
        note.startswith("Computed in bfloat16. Of 2 models the one that differs most: bfloat16 against")
        and "up to 0.5" in note
    )
    (note,) = open_predictor(saved(tmp_path / "old"), "cpu", "bf16").precision_notes
    assert note.startswith("bfloat16 was not compared with float32 when this model was trained")


def test_a_number_format_that_is_unknown_or_slow_here_is_refused(tmp_path):
    folder = bundle_of(tmp_path / "model")
    with pytest.raises(UsageError, match="one of float32, bfloat16, bf16, float16, fp16"):
        open_predictor(folder, "cpu", "double")
    with pytest.raises(UsageError, match="float16 is for GPUs without bfloat16"):
        open_predictor(folder, "cpu", "fp16")


def test_an_onnx_file_and_stored_answers_of_folds_take_no_number_format(tmp_path, capsys):
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    assert main(["predict", "flowers.onnx", str(tmp_path / "a.png"), "--precision", "bf16"]) == 2
    assert "number format that it was exported in. Leave out --precision bf16" in capsys.readouterr().err
    (tmp_path / "folds").mkdir()
    (tmp_path / "folds" / "folds.json").write_text("{}")
    assert main(["evaluate", str(tmp_path / "folds"), "--precision", "bf16"]) == 2
    assert "whose answers are kept, in float32. Leave out --precision bf16" in capsys.readouterr().err
