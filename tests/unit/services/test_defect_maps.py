"""Doors of an anomaly model: maps of defects, explanations, ONNX, the server's rows, and what has no meaning."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from good_parts import MACHINE, draw_part, draw_parts, save_weights
from vitrail.cli.main import main
from vitrail.data.parallel import ImageName
from vitrail.data.preprocess import preprocess_image
from vitrail.data.settings import DataSettings
from vitrail.errors import UsageError
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.explain.methods import list_methods_of
from vitrail.predict.predictor import Predictor
from vitrail.report.provenance import read_facts
from vitrail.serve.limits import ServerLimits
from vitrail.serve.served_model import ServedModel
from vitrail.services.defect_maps import require_maps, to_16_bits, write_defect_maps
from vitrail.services.evaluation import evaluate_model, load_held_out
from vitrail.services.evaluation_report import list_wrong, write_evaluation
from vitrail.services.explanation import ExplainRequest, explain_images, open_explainer
from vitrail.train import fit as training
from vitrail.train.request import TrainRequest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("anomaly")
    source = draw_parts(root / "parts")
    request = TrainRequest(
        data=DataSettings(source=str(source), task="anomaly"), weights=str(save_weights(root / "theirs"))
    )
    list(training.fit(request, MACHINE, root / "run"))
    return root / "run"


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "in" / f"{name}.png" for name in ("good", "bad")]
    paths[0].parent.mkdir()
    for path, spot in zip(paths, (False, True), strict=True):
        Image.fromarray(draw_part(300, spot)).save(path)
    return paths


def test_maps_show_the_spot_and_hold_the_distances(run: Path, pictures: list[Path], tmp_path: Path):
    predictor = Predictor.open(run)
    written = list(write_defect_maps(predictor, pictures, tmp_path / "maps"))
    assert [path.name for path in written] == ["good.png", "bad.png"]
    values = np.asarray(Image.open(tmp_path / "maps" / "bad.map.png"))
    assert values.dtype == np.uint16 and values.shape == predictor.spec.size
    spot = draw_part(300, spot=True).astype(int) > draw_part(300).astype(int) + 60
    scaled = np.asarray(Image.fromarray(spot).resize((32, 32)))
    assert values[scaled].mean() > 2 * values[~scaled].mean()
    colours = np.asarray(Image.open(written[1])).astype(int)
    assert colours.shape[-1] == 3 and (colours.max(-1) - colours.min(-1)).max() > 100
    plain = np.asarray(Image.open(written[0])).astype(int)
    assert (plain.max(-1) - plain.min(-1)).mean() < (colours.max(-1) - colours.min(-1)).mean()


def test_pictures_of_one_name_have_maps_of_their_own(run: Path, pictures: list[Path], tmp_path: Path):
    written = list(write_defect_maps(Predictor.open(run), [pictures[0], pictures[0]], tmp_path / "maps"))
    assert [path.name for path in written] == ["good.png", "good-2.png"]


def test_sixteen_bits_span_every_distance():
    assert to_16_bits(np.array([[0.0, 1.0, 2.0, 3.0]], np.float32)).tolist() == [[0, 32768, 65535, 65535]]


def test_the_command_writes_rows_and_maps(
    run: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = tmp_path / "answers.csv"
    asked = ["predict", str(run), *map(str, pictures), "--to", str(rows), "--maps", str(tmp_path / "maps")]
    assert main(asked) == 0
    assert "2 maps written to" in capsys.readouterr().err
    header, *lines = rows.read_text().splitlines()
    assert header == "path,id,split,target,label,score,p_value,abstain" and ",defect," in lines[1]
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == [
        "bad.map.png", "bad.png", "good.map.png", "good.png"
    ]  # fmt: skip
    assert main([*asked, "--part-size", "1024"]) == 2
    assert "--maps are drawn by torch in one process" in capsys.readouterr().err


def test_explanations_are_the_distances(run: Path, pictures: list[Path]):
    explainer = open_explainer(str(run))
    assert list(list_methods_of(explainer.model.config)) == ["distances"]
    (one,) = explain_images(explainer, [pictures[1]], ExplainRequest())
    assert not isinstance(one, tuple)
    assert one.heatmap.method == "distances" and one.heatmap.values.shape == (1, 8, 8)
    assert one.title == "Answered: defect"
    with pytest.raises(UsageError, match=r"no method 'relevance'\. The methods are distances"):
        list(explain_images(explainer, [pictures[1]], ExplainRequest(method="relevance")))


def test_features_of_the_whole_picture_are_the_mean_of_its_patches(run: Path, pictures: list[Path]):
    assert vitrail.open(run).embed(pictures).vectors.shape == (2, 24)


def test_the_server_has_score_and_p_value_in_its_rows(run: Path, pictures: list[Path]):
    predictor = Predictor.open(run)
    served = ServedModel(predictor, "parts")
    served.warm_up()
    images = torch.stack([preprocess_image(path, predictor.spec) for path in pictures])
    batch = served.predict_batch([ImageName(str(path), path.stem) for path in pictures], images)
    assert [row["label"] for row in batch.rows] == ["good", "defect"]
    assert batch.rows[1]["p_value"] == pytest.approx(1 / 13) and "probability" not in batch.rows[1]
    (method,) = served.describe(ServerLimits(), needs_token=False)["methods"]
    assert method["name"] == "distances" and not method["of_class"]


@pytest.mark.wide
def test_an_onnx_file_holds_the_bank_and_the_threshold(run: Path, pictures: list[Path], tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "parts.onnx"
    assert main(["export", str(run), "--to", "onnx", "--out", str(path)]) == 0
    names = {tensor.name for tensor in onnx.load(path).graph.initializer}
    assert "decision.thresholds" in names
    from vitrail.services.predict_file import open_file_predictor

    ours = Predictor.open(run).predict(pictures)
    theirs = open_file_predictor(str(path), "onnx", "cpu", {}).predict(pictures)
    assert isinstance(ours, ClassificationPredictions) and isinstance(theirs, ClassificationPredictions)
    assert ours.scores is not None and theirs.scores is not None and ours.p_values is not None
    np.testing.assert_allclose(theirs.scores, ours.scores, atol=1e-4)
    np.testing.assert_allclose(theirs.p_values, ours.p_values, atol=1e-6)
    assert theirs.labels == ours.labels == ("good", "defect")


def test_an_evaluation_is_kept_with_its_page_and_names_what_was_missed(run: Path, tmp_path: Path):
    predictor = Predictor.open(run)
    labelled = load_held_out(run, None)
    result = evaluate_model(predictor, labelled)
    page = write_evaluation(tmp_path / "kept", str(run), "", predictor, labelled, result)
    assert "AUROC" in page.read_text(encoding="utf-8")
    facts = read_facts(tmp_path / "kept")
    assert facts.all_metrics == (result.metrics,) and not facts.warnings
    called = dataclasses.replace(result.predictions, predicted=1 - result.predictions.indices)
    assert "spot, answered good (p 0.0" in list_wrong(called).table()


def test_its_maps_are_named_unchecked_and_why(run: Path):
    choice = Predictor.open(run).members[0].map_choice
    assert choice is not None and choice.method == "distances"
    assert choice.describe().endswith("was not checked: they are its score, patch by patch.")


def test_the_server_says_that_there_is_no_rule_to_choose(run: Path):
    served = ServedModel(Predictor.open(run), "parts", folder=run / "model")
    told = served.describe_decisions()
    assert told["versions"][0]["rule"] == "a defect up to a p-value of 0.0769"
    assert "decides by p-values of good pictures, not by a rule" in told["validation"]["why"]


def test_what_a_model_without_a_bank_cannot_show_is_said(run: Path, capsys: pytest.CaptureFixture[str]):
    plain = object.__new__(Predictor)
    plain.task = "classification"
    with pytest.raises(UsageError, match=r"this model answers classification\. For the reasons .* vitrail explain"):
        require_maps(plain)
    assert main(["decide", str(run), "--rule", "f1"]) == 2
    assert "decides by p-values of good pictures" in capsys.readouterr().err
    assert main(["report", str(run), "--for", "inspection"]) == 2
    assert "one of inspection already" in capsys.readouterr().err
    assert main(["predict", str(run), str(run / "report.html"), "--sets"]) == 2
