"""A list of suspects: what a model sees, the names of a source, and a file that `--exclude` takes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from unit.services.test_compare_verb import run_on
from vitrail.data.checks import findings
from vitrail.data.source import Source
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.label_errors import SUSPECT_COLUMNS, LabelErrorReport
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.services import diagnostics
from vitrail.services.diagnostics import extract_features, find_label_errors, keep_split_images
from vitrail.services.evaluation import LabelledImages
from vitrail.spec import ImageSpec

N = 120
CLASSES = ("=dark", "bright")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Probes are many small steps, which a second thread only slows down."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(2)


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    """An untrained model; what its head reads still tells dark from bright."""
    model = vitrail.create("vit_mu_patch8_16", outputs=2)
    return Predictor([PredictorMember(model=model, spec=ImageSpec(height=16, width=16), classes=("yes", "no"))])


def shades(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of two brightnesses, and which each has."""
    generator = np.random.default_rng(0)
    bright = generator.integers(0, 2, n)
    levels = 60 + 120 * bright + generator.normal(size=n) * 10
    pictures = levels[:, None, None, None] + generator.normal(size=(n, 16, 16, 3)) * 8
    return pictures.clip(0, 255).astype(np.uint8), bright


def source(targets: np.ndarray, **fields: object) -> Source:
    pictures, _ = shades(len(targets))
    given = {
        "name": "shades",
        "classes": CLASSES,
        "images": pictures,
        "targets": targets,
        "ids": tuple(f"-{row}.png" for row in range(len(targets))),
    }
    return Source(**(given | fields))


def every(found: Source) -> LabelledImages:
    return LabelledImages(found, np.arange(len(found)), "all")


WRONG = [3, 40, 41, 99]


def spoiled() -> np.ndarray:
    _, targets = shades()
    return np.where(np.isin(np.arange(N), WRONG), 1 - targets, targets)


@pytest.fixture(scope="module")
def found(predictor: Predictor) -> LabelErrorReport:
    return find_label_errors(predictor, every(source(spoiled())))


def test_the_list_names_the_changed_labels_and_train_takes_it(found, tmp_path):
    given = source(spoiled())
    assert {one.id for one in found.suspects} == {f"-{row}.png" for row in WRONG}
    assert all({one.given, one.suggested} == set(CLASSES) for one in found.suspects)
    assert (found.pictures, found.cells, found.figure) == (N, N, "accuracy")
    assert found.worth == pytest.approx(1 - len(WRONG) / N)
    path = tmp_path / "suspects.csv"
    found.write_csv(path)
    assert findings.read_exclude_list(path, given).tolist() == WRONG
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == SUSPECT_COLUMNS and {row["given"] for row in rows} <= {"'=dark", "bright"}
    assert "probes that have not seen it give" in rows[0]["reason"]
    kept = [line for line in path.read_text().splitlines(keepends=True) if "-40.png" not in line]
    path.write_text("".join(kept))
    assert findings.read_exclude_list(path, given).tolist() == [3, 41, 99]


def test_a_person_reads_how_many_there_are_and_the_ten_worst(found):
    text = found.table(Path("list.csv"))
    assert "4 labels (3.3%) are likely to be wrong. They are in list.csv." in text
    assert "accuracy is 0.9667" in text and "--exclude" in text and text.count(".png") == 4
    assert json.loads(json.dumps(found.to_json()))["suspects"][0]["id"] in text


def test_a_list_of_judges_that_err_often_comes_with_a_warning(found):
    assert "may be right" not in found.table(Path("list.csv"))
    erring = replace(found, worth=0.8)
    assert (
        "The judges contradict 20% of all labels: they err often, and many listed labels may be right."
        in erring.table(Path("list.csv"))
    )
    assert "may be right" not in replace(erring, suspects=()).table(Path("list.csv"))


def test_poor_judges_give_no_list_and_say_why(monkeypatch, predictor, tmp_path):
    _, targets = shades()
    guessed = np.eye(2)[np.random.default_rng(0).permutation(targets)] * 4
    monkeypatch.setattr(diagnostics, "predict_out_of_fold", lambda *given: guessed.astype(np.float32))
    found = find_label_errors(predictor, every(source(targets)))
    assert found.inconclusive and found.suspects == ()
    text = found.table(tmp_path / "list.csv")
    assert "No label is listed: where the judges are sure they agree with the given label in only" in text
    assert "likely to be wrong" not in text and "list.csv" not in text


def test_clean_labels_give_an_empty_list_that_leaves_nothing_out(predictor, tmp_path):
    _, targets = shades()
    given = source(targets)
    found = find_label_errors(predictor, every(given))
    assert found.suspects == () and "0 labels (0.0%) are likely to be wrong" in found.table(tmp_path)
    found.write_csv(tmp_path / "none.csv")
    assert findings.read_exclude_list(tmp_path / "none.csv", given).tolist() == []


def test_labels_and_numbers_are_listed_cell_by_cell(predictor):
    _, bright = shades()
    cells = np.stack([spoiled(), 1 - bright], axis=1).astype(np.float32)
    found = find_label_errors(predictor, every(source(cells, task="multilabel")))
    assert {one.id for one in found.suspects} == {f"-{row}.png" for row in WRONG}
    assert {(one.given, one.suggested) for one in found.suspects} <= {
        ("with =dark", "without =dark"), ("without =dark", "with =dark"),
    }  # fmt: skip
    assert (found.cells, found.figure) == (2 * N, "mean AUROC")
    numbers = (100 + 10 * bright + np.random.default_rng(1).normal(size=N))[:, None].astype(np.float32)
    numbers[7] = 300
    found = find_label_errors(predictor, every(source(numbers, task="regression", classes=("age",))))
    assert found.suspects[0].id == "-7.png" and found.suspects[0].given == "age 300"
    assert "robust deviations" in found.suspects[0].reason and found.figure == "R2"


def test_features_are_what_the_head_reads_and_bad_pictures_can_be_left_out(predictor):
    pictures, targets = shades()
    given = source(targets, images=[*pictures[:60], np.full((4, 4, 3), np.nan), *pictures[61:]])
    with pytest.raises(DataError, match=r"--skip-bad"):
        extract_features(predictor, every(given))
    features, rows = extract_features(predictor, every(given), skip_bad=True)
    assert rows.tolist() == [*range(60), *range(61, N)] and features.shape == (
        N - 1,
        predictor.single_member().model.config.width,
    )
    x = (torch.from_numpy(pictures[:1]).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    with torch.inference_mode():
        head = predictor.single_member().model.eval().head(torch.from_numpy(features[:1])).numpy()
        np.testing.assert_allclose(head, predictor.single_member().model(x).numpy(), atol=1e-5)


def test_another_kind_of_model_is_refused():
    plain = Predictor([PredictorMember(model=nn.Flatten(), spec=ImageSpec(height=16, width=16), classes=("a", "b"))])
    with pytest.raises(UsageError, match=r"Vision Transformer"):
        extract_features(plain, every(source(spoiled())))


def test_what_a_run_has_left_out_stays_out_and_what_it_has_learnt_from_is_said(tmp_path):
    given = source(spoiled())
    run = run_on(tmp_path / "run", given, list(range(50)), list(range(50, 100)))
    found = keep_split_images(run, every(given))
    assert found.rows.tolist() == list(range(100))
    assert "has learnt from 50 of these 100 pictures" in found.notes[0]
    assert keep_split_images(tmp_path, every(given)).notes == ()
    other = every(source(spoiled()[:60]))
    assert keep_split_images(run, other) is other
