"""Doors of a segmentation model: PNG masks, rows of areas, Python, ONNX, pages, and what has no meaning."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from drawn_masks import CLASSES, draw_scene, draw_scenes
from exportable import spec_of
from good_parts import MACHINE, draw_parts, save_weights
from kinds import TINY
from served import saved
from vitrail.cli.main import main
from vitrail.data.labels.run_lengths import decode_coco_counts
from vitrail.data.preprocess import normalize, preprocess_image, unfit_mask
from vitrail.data.settings import DataSettings
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.predictions import RegressionPredictions, read_predictions_csv
from vitrail.model.class_maps import spread_logits
from vitrail.model.vit import create_model
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.serve import decode_worker
from vitrail.serve.app import image_name_from_path
from vitrail.serve.limits import ServerLimits
from vitrail.serve.protocols import describe_model, format_inference_response, mask_to_json
from vitrail.serve.served_model import ServedModel
from vitrail.services.evaluation import compare_models, evaluate_model, load_held_out
from vitrail.services.evaluation_report import write_evaluation
from vitrail.services.mask_files import encode_mask
from vitrail.train import fit as training
from vitrail.train.request import TrainRequest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("masks")
    source = draw_scenes(root / "scenes", 6)
    request = TrainRequest(
        data=DataSettings(source=str(source), task="segmentation", pixel_size=0.5),
        weights=str(save_weights(root / "theirs")), overrides={"finetune.method": "probe"},
    )  # fmt: skip
    list(training.fit(request, MACHINE, root / "run"))
    return root / "run"


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "in" / f"{name}.png" for name in ("wide", "small")]
    paths[0].parent.mkdir()
    for path, size in zip(paths, ((50, 90), (32, 32)), strict=True):
        Image.fromarray(draw_scene(70, size)[0]).save(path)
    return paths


def test_areas_are_given_in_squares_of_the_unit_by_every_interface(run: Path, pictures: list[Path], tmp_path: Path):
    """Pictures of 50 x 90 and 32 x 32 pixels, which are half a unit wide."""
    predictor = Predictor.open(run)
    decided = dataclasses.replace(predictor.decisions, reach=(0.1, 0.2, 0.3))
    table = predictor.with_decisions(decided).add_sets(predictor.predict(pictures))
    assert isinstance(table, RegressionPredictions) and table.ranges is not None and table.extents is not None
    assert table.extents.tolist() == [50 * 90 / 4, 32 * 32 / 4]
    for k, name in enumerate(CLASSES):
        ends = np.clip([table.values[:, k] - decided.reach[k], table.values[:, k] + decided.reach[k]], 0, 1)
        np.testing.assert_allclose(table.areas[f"area_{name}"], table.values[:, k] * table.extents)
        np.testing.assert_allclose(table.areas[f"area_low_{name}"], ends[0] * table.extents, rtol=1e-6)
        np.testing.assert_allclose(table.areas[f"area_high_{name}"], ends[1] * table.extents, rtol=1e-6)
    assert main(["predict", str(run), *map(str, pictures), "--to", str(tmp_path / "areas.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "areas.csv").read_text().splitlines()))
    served = ServedModel(predictor, "scenes")
    for place, (row, size) in enumerate(zip(rows, ((50, 90), (32, 32)), strict=True)):
        values = {name: float(text) for name, text in row.items() if name.startswith(("value", "area", "extent"))}
        answer = served.measure_areas(values, size, decided)
        for name, column in table.areas.items():
            assert answer[name] == pytest.approx(column[place], rel=1e-6)
            assert name not in values or values[name] == pytest.approx(column[place], rel=1e-6)
        assert f"area_{CLASSES[1]}" in values and "area_low" not in row
    stored = read_predictions_csv(run / "predictions" / "test.csv", "segmentation")
    assert isinstance(stored, RegressionPredictions) and set(stored.areas) == set(values) - {
        f"value_{name}" for name in CLASSES
    }
    report = (run / "report.html").read_text()
    assert f"the area of {CLASSES[0]} is" in report


def test_a_table_of_the_version_before_says_what_to_do(run: Path, tmp_path: Path):
    lines = [line.split(",") for line in (run / "predictions" / "test.csv").read_text().splitlines()]
    kept = [place for place, name in enumerate(lines[0]) if not name.startswith(("sure_", "area_", "extent"))]
    old = tmp_path / "test.csv"
    old.write_text("".join(f"{','.join(line[place] for place in kept)}\n" for line in lines))
    with pytest.raises(DataError, match=r"older version, which counted less of every mask\. Evaluate the run again"):
        read_predictions_csv(old, "segmentation")


@pytest.mark.parametrize("words", [{"pixel_size": -1.0}, {"pixel_size": float("nan")}])
def test_a_pixel_has_a_width(words: dict[str, float]):
    with pytest.raises(UsageError, match=r"data\.pixel_size must be a width above 0\. Got"):
        DataSettings(task="segmentation", **words)
    with pytest.raises(UsageError, match=r"pixel_size 2 is for areas of masks"):
        DataSettings(task="classification", pixel_size=2.0)


def test_the_command_writes_areas_and_masks_of_the_pictures_own_size(
    run: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows, folder = tmp_path / "areas.csv", tmp_path / "masks"
    asked = ["predict", str(run), *map(str, pictures), "--to", str(rows), "--masks", str(folder)]
    assert main(asked) == 0
    header, first, _ = rows.read_text().splitlines()
    assert header.startswith("path,id,split,target_ground") and header.endswith(
        "value_square,extent,area_ground,area_disc,area_square,abstain"
    )
    predictor = Predictor.open(run)
    predictions = predictor.predict(pictures)
    assert isinstance(predictions, RegressionPredictions) and predictions.masks is not None
    for path, classes, size in zip(pictures, predictions.masks, ((50, 90), (32, 32)), strict=True):
        with Image.open(folder / path.name) as image:
            assert image.mode == "P"
            np.testing.assert_array_equal(np.asarray(image), unfit_mask(classes, size, predictor.spec, 255))
    assert f",{(predictions.masks[0] == 0).mean():.9g}," in first
    assert main([*asked, "--part-size", "1024"]) == 2
    assert "--masks are written in one process" in capsys.readouterr().err
    assert main(["predict", str(run), str(pictures[0]), "--sets"]) == 2
    assert "ranges: to hold the truth in 90% of all cases they are fitted on at least 9" in capsys.readouterr().err


def test_python_has_the_masks_and_their_areas(run: Path, pictures: list[Path]):
    predictions = vitrail.open(run).predict(pictures)
    assert predictions.masks.shape == (2, 32, 32) and predictions.masks.dtype == np.uint8
    assert predictions.columns == CLASSES
    np.testing.assert_allclose(predictions.values[:, 1], (predictions.masks == 1).mean((1, 2)), atol=1e-6)
    single = vitrail.open(run).predict(pictures[1:])
    np.testing.assert_array_equal(single.masks[0], predictions.masks[1])
    empty = Predictor.open(run).predict([])
    assert isinstance(empty, RegressionPredictions) and empty.masks is not None and empty.masks.shape == (0, 32, 32)


def test_the_check_reads_masks_and_good_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = draw_scenes(tmp_path / "scenes", 4)
    Image.fromarray(np.full((40, 40), 255, np.uint8)).save(source / "masks" / "0.png")
    assert main(["check", str(source), "--task", "segmentation"]) == 0
    out = capsys.readouterr().out
    assert "1 of 4 masks has no known pixel: images/0.png." in out and "training is." in out and "--folds" not in out
    for mask in (source / "masks").glob("*.png"):
        Image.fromarray(np.zeros((40, 40), np.uint8)).save(mask)
    assert main(["check", str(source), "--task", "segmentation"]) == 3
    out = capsys.readouterr().out
    assert "STOP     The masks have pixels of only one class; telling apart takes two." in out
    assert main(["check", str(draw_parts(tmp_path / "parts", 3, 1)), "--task", "anomaly"]) == 0


@pytest.mark.wide
def test_an_onnx_file_gives_the_same_pixels(run: Path, pictures: list[Path], tmp_path: Path):
    pytest.importorskip("onnx")
    from vitrail.services.predict_file import open_file_predictor

    path = tmp_path / "scenes.onnx"
    assert main(["export", str(run), "--to", "onnx", "--out", str(path)]) == 0
    ours = Predictor.open(run).predict(pictures)
    theirs = open_file_predictor(str(path), "onnx", "cpu", {}).predict(pictures)
    assert isinstance(ours, RegressionPredictions) and isinstance(theirs, RegressionPredictions)
    assert theirs.masks is not None and theirs.masks.dtype == np.uint8
    np.testing.assert_array_equal(theirs.masks, ours.masks)
    np.testing.assert_array_equal(theirs.values, ours.values)
    masks = [tmp_path / name for name in ("torch", "onnx")]
    for model, folder in zip((str(run), str(path)), masks, strict=True):
        assert main(["predict", model, *map(str, pictures), "--masks", str(folder)]) == 0
    assert all((masks[0] / each.name).read_bytes() == (masks[1] / each.name).read_bytes() for each in pictures)


@pytest.mark.wide
def test_an_onnx_file_of_a_model_with_queries_gives_the_same_pixels(pictures: list[Path], tmp_path: Path):
    pytest.importorskip("onnx")
    from vitrail.services.predict_file import open_file_predictor

    shape = dataclasses.replace(
        TINY, channels=3, image_size=(32, 32), patch=(8, 8), outputs=3, pool="patches", upsample=4, queries=5,
        query_blocks=1,
    )  # fmt: skip
    network, generator = create_model(shape, seed=3).eval(), torch.Generator().manual_seed(4)
    for weights in network.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.35, generator=generator)
    member = PredictorMember(model=network, spec=spec_of(shape), classes=CLASSES, task="segmentation")
    bundle, path = saved(tmp_path / "tiny", member), tmp_path / "tiny.onnx"
    assert main(["export", str(bundle), "--to", "onnx", "--out", str(path)]) == 0
    ours = Predictor.open(bundle).predict(pictures)
    theirs = open_file_predictor(str(path), "onnx", "cpu", {}).predict(pictures)
    assert isinstance(ours, RegressionPredictions) and isinstance(theirs, RegressionPredictions)
    assert ours.masks is not None and len(np.unique(ours.masks)) > 1 and ours.confidences is not None
    assert ours.confidences.shape == ours.masks.shape and theirs.confidences is None
    np.testing.assert_array_equal(theirs.masks, ours.masks)
    read = torch.stack([preprocess_image(path, member.spec) for path in pictures])
    with torch.no_grad():
        chances = spread_logits(network(normalize(read, member.spec)), shape).softmax(1).amax(1).numpy()
    np.testing.assert_allclose(ours.confidences / 255, chances, atol=0.5 / 255 + 1e-5)


def test_a_served_model_gives_the_masks_of_the_other_doors(run: Path, pictures: list[Path], tmp_path: Path):
    predictor = Predictor.open(run)
    served = ServedModel(predictor, "scenes")
    served.warm_up()
    prepared = [decode_worker.read_image(path.read_bytes(), served.spec) for path in pictures]
    images = torch.stack([image for image, _ in prepared])
    batch = served.predict_batch([image_name_from_path(path.name) for path in pictures], images)
    expected = predictor.predict(pictures)
    assert isinstance(expected, RegressionPredictions) and expected.masks is not None
    np.testing.assert_array_equal(batch.outputs["masks"], expected.masks)
    assert batch.rows[0]["value_disc"] == expected.values[0, 1] and batch.rows[0]["path"] == "wide.png"
    assert main(["predict", str(run), *map(str, pictures), "--masks", str(tmp_path / "masks")]) == 0
    for row, (path, (_, info)) in enumerate(zip(pictures, prepared, strict=True)):
        mask = unfit_mask(batch.outputs["masks"][row], info["size"], served.spec, 255)
        assert encode_mask(mask, 3) == (tmp_path / "masks" / path.name).read_bytes()
        answer = mask_to_json(mask, CLASSES)
        assert answer["size"] == list(info["size"]) == list(mask.shape)
        for k, name in enumerate(CLASSES):
            counts = answer["counts"].get(name, [mask.size])  # what it does not have is not there
            np.testing.assert_array_equal(decode_coco_counts(counts, mask.shape, "here"), mask == k)
    about = served.describe(ServerLimits(), False)
    assert about["columns"] == about["classes"] == list(CLASSES) and len(about["colors"]) == 3
    described = describe_model("scenes", "segmentation", 3, True, served.spec)
    assert described["outputs"][0] == {"name": "masks", "datatype": "UINT8", "shape": [-1, 32, 32]}
    response = format_inference_response("scenes", "", batch.outputs, ["masks"])
    assert response["outputs"][0]["datatype"] == "UINT8" and response["outputs"][0]["shape"] == [2, 32, 32]


def test_an_evaluation_is_kept_with_its_page(run: Path, tmp_path: Path):
    predictor, labelled = Predictor.open(run), load_held_out(run, None)
    result = evaluate_model(predictor, labelled)
    assert isinstance(result.predictions, RegressionPredictions) and result.predictions.masks is None
    page = write_evaluation(tmp_path / "kept", str(run), "", predictor, labelled, result)
    assert "Masks and answers" in page.read_text(encoding="utf-8")


def test_what_is_of_whole_pictures_is_refused(run: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]):
    predictor, labelled = Predictor.open(run), load_held_out(run, None)
    with pytest.raises(UsageError, match="A comparison of two models looks at one answer for each picture"):
        compare_models(predictor, predictor, labelled)
    with pytest.raises(UsageError, match="Masks of several models are not averaged"):
        Predictor([predictor.single_member()] * 2)
    refused = {
        "explain": ([str(pictures[0])], "The mask is this model's answer, pixel by pixel"),
        "decide": (["--alpha", "0.1"], "answers every pixel with its likeliest class"),
        "convert": (["--to", "timm", "--out", str(pictures[0].parent / "timm")], "has its head on every patch"),
        "evaluate": (["--shortcuts"], "The test of shortcuts looks at one answer"),
        "report": (["--for", "inspection"], "this run answers pixels. Leave --for out"),
        "export": (["--to", "web"], "A web page shows no masks yet"),
    }
    for verb, (words, sentence) in refused.items():
        assert main([verb, str(run), *words]) == 2, verb
        assert sentence in capsys.readouterr().err
    assert main(["evaluate", str(run), "--corruptions", "imagenet-c"]) == 2
    assert "The test of corruptions looks at one answer" in capsys.readouterr().err
