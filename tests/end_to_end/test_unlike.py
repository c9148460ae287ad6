"""`vitrail evaluate RUN OTHER --unlike`: pictures of another kind are told from a run's own, and a class held out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import vitrail as package
from vitrail.checkpoints import bundle_weights
from vitrail.data.settings import DataSettings
from vitrail.errors import UsageError
from vitrail.predict.predictor import Predictor
from vitrail.services import diagnostics
from vitrail.services.evaluation import LabelledImages
from vitrail.spec import ImageSpec

pytestmark = pytest.mark.wide

STEPS = 150


def digits() -> tuple[np.ndarray, np.ndarray]:
    pictures, targets = load_digits(return_X_y=True)
    return np.rint(pictures.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8), targets


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on all digits."""
    return fitted("digits", tmp_path_factory.mktemp("runs") / "ten").path


def fitted(source: object, out: Path) -> package.Run:
    import torch

    before = torch.get_num_threads()
    settings = {"compute.threads": 1, "recipe.batch_size": 64}
    run = package.fit(source, "vit_pico_patch2_8", steps=STEPS, out=out, settings=settings, quiet=True)
    torch.set_num_threads(before)
    return run


@pytest.fixture(scope="module")
def textures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Waves of any direction and length, 24 x 24, in a plain folder without classes."""
    folder, generator = tmp_path_factory.mktemp("textures"), np.random.default_rng(0)
    y, x = np.mgrid[:24, :24]
    for number in range(80):
        turn, rate = generator.uniform(0, np.pi), generator.uniform(0.3, 1.5)
        wave = 128 + 110 * np.sin(rate * (x * np.cos(turn) + y * np.sin(turn)) + generator.uniform(0, 6))
        Image.fromarray(wave.astype(np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize("other", ["planted", "textures"])
def test_V7_digits_are_told_from_pictures_of_another_kind(ten, textures, other, vitrail):
    answer = vitrail("evaluate", ten, textures if other == "textures" else other, "--unlike", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    distance, neighbours = (one["auroc"] for one in told["scores"])
    assert distance >= 0.99 and neighbours > 0.85, told
    assert told["unlike"]["share"] > 0.9 and told["held_out"]["share"] < 0.06


def test_V7_every_door_calls_them_unlike(ten, textures, vitrail, tmp_path):
    paths = sorted(textures.iterdir())
    command = json.loads(vitrail("predict", ten, *paths, "--json").out)
    python = package.open(ten).predict(paths).records()
    elsewhere = Predictor.open(Path(shutil.copytree(ten / "model", tmp_path / "elsewhere")))
    told = [[row["abstain"] for row in rows] for rows in (command, python, elsewhere.predict(paths).records())]
    assert told[0] == told[1] == told[2] and told[0].count("unlike") > 0.9 * len(paths)


def test_V7_a_person_reads_both_scores_and_the_cut(ten, textures, vitrail):
    lines = vitrail("evaluate", ten, textures, "--unlike").out.splitlines()
    assert lines[0].startswith("359 held-out pictures of digits (test) beside 80 of textures")
    assert lines[2].startswith("Mahalanobis distance") and lines[3].startswith("distance to neighbours")
    assert lines[4].startswith("Answered with 'unlike', by the cut of the training: ")


def test_V7_a_class_that_was_held_out_is_told_too_if_less_surely(tmp_path):
    pictures, targets = digits()
    run = fitted((pictures[targets != 9], targets[targets != 9]), tmp_path / "nine")
    found = run.unlike((pictures[targets == 9], targets[targets == 9]))
    assert (found.others, found.other) == (180, "arrays")
    for one in found.scores:
        assert one.auroc_interval[0] > 0.6, found


def test_what_cannot_be_told_is_refused(ten, textures, vitrail, tmp_path):
    answer = vitrail("evaluate", ten, "--unlike")
    assert answer.code == 2 and "--unlike needs pictures of another kind" in answer.err
    answer = vitrail("evaluate", ten, textures, "--unlike", "--by", "all")
    assert answer.code == 2 and "--unlike looks at pictures, not at answers." in answer.err
    shutil.copytree(ten / "model", tmp_path / "alone")
    answer = vitrail("evaluate", tmp_path / "alone", textures, "--unlike")
    assert answer.code == 2 and "Only a run folder knows which pictures it has held out" in answer.err
    model = package.create("vit_mu_patch8_16", outputs=2)
    bundle_weights.save_bundle(
        tmp_path / "kept", model, ImageSpec(height=16, width=16), "classification", ("cat", "dog"), {}
    )
    bare = Predictor.open(tmp_path / "kept")
    some = diagnostics.load_ood_source(textures)
    with pytest.raises(UsageError, match=r"familiar\.safetensors"):
        diagnostics.evaluate_ood(bare, some, some)


def test_another_source_is_read_whatever_it_shows(textures):
    assert len(diagnostics.load_ood_source(textures).rows) == 80
    pictures, targets = digits()
    whole = diagnostics.load_ood_source((pictures, targets.astype(float) + 0.5))
    assert isinstance(whole, LabelledImages) and len(whole.rows) == 1797 and whole.source.task == "regression"


def test_nothing_that_is_said_of_another_source_is_ignored(textures, tmp_path):
    with pytest.raises(
        UsageError, match=r"Every picture of the folder .*textures0 is looked at.*Leave --data\.\* out\."
    ):
        diagnostics.load_ood_source(textures, DataSettings(source=str(textures), keep_empty=True))
    listed = tmp_path / "list.csv"
    listed.write_text("id\ndigits/0003\n")
    assert len(diagnostics.load_ood_source("digits", DataSettings(source="digits", exclude=str(listed))).rows) == 1796
