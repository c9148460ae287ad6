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
