"""A served model of masks: run lengths, a PNG, and the page give the pixels that `vitrail predict --masks` writes."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drawn_masks import CLASSES, draw_scene
from exportable import spec_of
from good_parts import save_weights
from kinds import TINY
from served import Server, form, saved, serving
from vitrail.data.labels.run_lengths import decode_coco_counts
from vitrail.model.vit import create_model
from vitrail.predict.predictor import PredictorMember

pytestmark = [pytest.mark.serial, pytest.mark.wide]
SIZES = {"small.png": (32, 32), "wide.png": (45, 90)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = dataclasses.replace(
        TINY, channels=3, image_size=(32, 32), patch=(8, 8), outputs=3, pool="patches", upsample=4
    )
    network = create_model(shape, seed=3).eval()
    generator = torch.Generator().manual_seed(4)
    for weights in network.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.35, generator=generator)
    member = PredictorMember(model=network, spec=spec_of(shape), classes=CLASSES, task="segmentation")
    return saved(tmp_path_factory.mktemp("models") / "tiny", member)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with serving(model, "--workers", 1) as found:
        yield found


@pytest.fixture
def pictures(tmp_path: Path) -> dict[str, bytes]:
    for place, (name, size) in enumerate(SIZES.items()):
        Image.fromarray(draw_scene(place, size)[0]).save(tmp_path / name)
    return {name: (tmp_path / name).read_bytes() for name in SIZES}


def test_every_door_gives_the_same_pixels(vitrail, server: Server, model: Path, pictures: dict[str, bytes], tmp_path):
    answer = vitrail("predict", model, *(tmp_path / name for name in pictures), "--masks", tmp_path / "masks")
    assert answer.code == 0, answer.err
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    said = server.ask("/predict", *form(*pictures.items()))
    for name, ours, theirs in zip(pictures, rows, said.json["rows"], strict=True):
        written = (tmp_path / "masks" / name).read_bytes()
        classes = np.asarray(Image.open(io.BytesIO(written)))
        assert len(np.unique(classes)) > 1 and theirs["mask"]["size"] == list(SIZES[name]) == list(classes.shape)
        for k, label in enumerate(CLASSES):
            counts = theirs["mask"]["counts"].get(label, [classes.size])
            np.testing.assert_array_equal(decode_coco_counts(counts, SIZES[name], name), classes == k)
            assert float(ours[f"value_{label}"]) == pytest.approx(theirs[f"value_{label}"], abs=1e-8)
        png = server.ask("/predict", pictures[name], {"Accept": "image/png"})
        assert png.status == 200 and png.headers["content-type"] == "image/png" and png.body == written


def test_what_masks_do_not_have_is_refused_in_a_sentence(server: Server, pictures: dict[str, bytes]):
    refused = server.ask("/explain", pictures["small.png"])
    assert refused.status == 422 and "The mask is this model's answer, pixel by pixel" in refused.json["error"]
    about = server.ask("/about").json
    assert about["task"] == "segmentation" and about["columns"] == list(CLASSES) and not about["methods"]


@pytest.mark.needs_chromium
def test_the_page_shows_a_mask_and_saves_its_areas(
    browser, vitrail, server: Server, model: Path, pictures: dict[str, bytes], tmp_path: Path
):
    from playwright.sync_api import expect

    from end_to_end.page_hands import visiting

    written = vitrail("predict", model, *(tmp_path / name for name in pictures))
    with visiting(browser, f"http://127.0.0.1:{server.port}") as hands:
        hands.pick(pictures)
        hands.answered(2)
        expect(hands.page.locator("canvas.mask")).to_be_visible()
        expect(hands.page.locator(".switches li")).to_have_count(3)
        pixels = "document.querySelector('canvas.mask').toDataURL()"
        colored = hands.page.evaluate(pixels)
        for box in hands.page.locator(".switches input").all():
            box.uncheck()
        plain = hands.page.evaluate(pixels)
        hands.page.locator(".switches input").nth(1).check()
        assert hands.page.evaluate(pixels) != plain != colored
        hands.page.locator("#mask-opacity").fill("0")
        assert hands.page.evaluate(pixels) == plain
        found = list(csv.DictReader(io.StringIO(hands.saved().decode())))
        expected = list(csv.DictReader(io.StringIO(written.out)))
        for ours, theirs in zip(found, expected, strict=True):
            assert [ours[f"value_{name}"] for name in CLASSES] == [theirs[f"value_{name}"] for name in CLASSES]


@pytest.mark.needs_chromium
def test_a_mask_is_corrected_on_the_page_saved_and_learnt(
    browser, vitrail, server: Server, pictures: dict[str, bytes], tmp_path: Path
):
    from end_to_end.page_hands import visiting

    saved_masks: dict[str, list[bytes]] = {"as answered": [], "corrected": []}
    with visiting(browser, f"http://127.0.0.1:{server.port}") as hands:
        hands.pick(pictures)
        hands.answered(2)
        for name, (height, width) in SIZES.items():
            hands.row(name).locator("button.name").click()
            hands.page.get_by_text("Correct this mask").click()
            hands.page.locator("#brush-class").select_option("2")
            saved_masks["as answered"].append(hands.download("#save-mask", f"{Path(name).stem}.png"))
            hands.page.locator("#brush-size").fill("10")
            hands.drag("canvas.mask", (0.25, 0.5), (0.75, 0.5))
            stroke = hands.download("#save-mask", f"{Path(name).stem}.png")
            before, after = (
                np.asarray(Image.open(io.BytesIO(each)).convert("L"))
                for each in (saved_masks["as answered"][-1], stroke)
            )
            server_says = server.ask("/predict", pictures[name], {"Accept": "image/png"}).body
            np.testing.assert_array_equal(before, np.asarray(Image.open(io.BytesIO(server_says))))
            rows, columns = np.mgrid[:height, :width] + 0.5
            outside = np.maximum(np.maximum(0.25 * width - columns, columns - 0.75 * width), 0)
            distance = np.hypot(rows - 0.5 * height, outside)
            assert (after[distance < 4] == 2).all() and (after == before)[distance > 6].all()
            hands.page.get_by_role("button", name="Undo").click()
            assert hands.download("#save-mask", f"{Path(name).stem}.png") == saved_masks["as answered"][-1]
            hands.page.locator("#brush-size").fill("60")
            hands.drag("canvas.mask", (0.0, 0.2), (1.0, 0.2))
            saved_masks["corrected"].append(hands.download("#save-mask", f"{Path(name).stem}.png"))
        legend = hands.download("#save-legend", "classes.csv")
    assert legend.decode().splitlines() == [
        "value,name",
        *(f"{k},{name}" for k, name in enumerate(CLASSES)),
        "255,unknown",
    ]
    areas = []
    for kind, masks in saved_masks.items():
        folder = tmp_path / kind
        for part in ("images", "masks"):
            (folder / part).mkdir(parents=True)
        (folder / "classes.csv").write_bytes(legend)
        for (name, picture), mask in zip(pictures.items(), masks, strict=True):
            (folder / "images" / name).write_bytes(picture)
            (folder / "masks" / name).write_bytes(mask)
        run, weights = tmp_path / f"run {kind}", save_weights(tmp_path / f"weights {kind}")
        keep_all = ("--data.val_fraction", "0", "--data.test_fraction", "0", "--out", run)
        trained = vitrail("train", folder, "--task", "segmentation", "--weights", weights, *keep_all)
        assert trained.code == 0, trained.err
        answer = vitrail("predict", run, *(tmp_path / name for name in pictures))
        areas.append([float(row["value_square"]) for row in csv.DictReader(io.StringIO(answer.out))])
    assert np.mean(areas[1]) > np.mean(areas[0]) + 0.1
