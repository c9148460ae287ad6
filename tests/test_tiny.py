"""The whole promise in seconds: train on the digits, evaluate, predict one picture, read the report, go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail

pytestmark = pytest.mark.wide


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vitrail.Run:
    """A model of two small blocks after forty steps: it has learnt little, but everything has happened."""
    threads = torch.get_num_threads()
    settings = {"model.width": 32, "model.depth": 2, "model.heads": 2, "model.mlp_width": 64, "recipe.batch_size": 64}
    settings |= {"compute.threads": 1}
    trained = vitrail.fit(
        "digits", steps=40, out=tmp_path_factory.mktemp("tiny") / "run", settings=settings, quiet=True
    )
    torch.set_num_threads(threads)
    return trained


def test_training_leaves_a_folder_with_everything_in_it(run):
    names = {path.name for path in run.path.iterdir()}
    assert {"plan.toml", "model", "checkpoints", "metrics.jsonl", "predictions", "report.html", "report.json"} <= names
    assert run.plan.recipe.steps == 40 and run.plan.model.width == 32


def test_the_run_can_be_opened_again(run):
    assert vitrail.open(run.path).plan == run.plan


def test_it_is_measured_on_pictures_that_it_has_not_seen(run):
    metrics = run.evaluate()
    assert metrics.split == "test" and metrics.n == 359
    assert metrics.accuracy > 0.15  # guessing gives 0.10
    low, high = metrics.accuracy_interval
    assert low < metrics.accuracy < high


def test_one_picture_gets_an_answer(run, tmp_path):
    picture = tmp_path / "eight.png"
    Image.fromarray(np.kron([[0, 255], [255, 0]], np.ones((4, 4))).astype(np.uint8)).save(picture)
    answer = run.predict([picture])
    assert answer.classes == tuple("0123456789") and answer.probabilities.shape == (1, 10)
    assert answer.probabilities.sum() == pytest.approx(1, abs=1e-6)


def test_the_report_is_one_page_that_needs_nothing_else(run):
    page = run.report.read_text(encoding="utf-8")
    assert "digits" in page and "data:image/png;base64," in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "<script src" not in page


def test_the_command_line_answers_the_same(run, tmp_path, capsys):
    from vitrail.cli.main import main

    picture = tmp_path / "eight.png"
    Image.fromarray(np.kron([[0, 255], [255, 0]], np.ones((4, 4))).astype(np.uint8)).save(picture)
    assert main(["predict", str(run.path), str(picture)]) == 0
    assert capsys.readouterr().out.encode() == run.predict([picture]).csv_bytes()


def test_resuming_what_is_finished_says_so(run, capsys):
    from vitrail.cli.main import main

    assert main(["train", "--resume", str(run.path)]) == 0
    assert "is complete already" in capsys.readouterr().err


def test_the_trained_model_is_a_module_like_any_other(run):
    model = vitrail.load(run.path)
    assert isinstance(run.path, Path) and isinstance(model, torch.nn.Module)
    with torch.inference_mode():
        assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_its_features_find_the_most_similar_picture(run):
    from sklearn.datasets import load_digits

    digits = list(np.rint(load_digits().images[:40] * (255 / 16)).astype(np.uint8))
    found = run.embed([*digits, digits[7]])
    assert found.vectors.shape == (41, 32) and found.nearest(1).rows[[7, 40], 0].tolist() == [40, 7]
    assert run.embed(digits[:3], "patches").vectors.shape == (3, *run.plan.model.grid, 32)
    with pytest.raises(ValueError, match=r"embed takes a list of pictures\. Got 'a\.png'"):
        run.embed("a.png")
