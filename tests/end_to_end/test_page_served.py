"""The web page of the real server: it shows and saves what `vitrail predict` writes, and no policy stops it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from end_to_end.page_hands import visiting
from end_to_end.page_worlds import encoded
from served import reading, saved, serving

pytestmark = [pytest.mark.needs_chromium, pytest.mark.wide]
TOKEN = "a-token-that-is-long-enough"


def drawn() -> dict[str, bytes]:
    """Six pictures of noise and slopes in three kinds of file, one of which no browser shows."""
    rng = np.random.default_rng(0)
    kinds = {"png": "PNG", "jpg": "JPEG", "tif": "TIFF"}
    found = {}
    for place, (ending, kind) in enumerate([*kinds.items(), *kinds.items()]):
        slope = np.linspace(0, 40 * place, 40)[:, None, None] + rng.integers(0, 50, (40, 48, 3))
        found[f"{place}.{ending}"] = encoded(Image.fromarray(slope.astype(np.uint8)), kind)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "decided"), [("classification", "calibrated"), ("multilabel", "labels"), ("regression", "nothing")]
)
def test_the_page_saves_what_predict_writes_and_explains_it(browser, vitrail, tmp_path, monkeypatch, task, decided):
    model, pictures = saved(tmp_path / "model", reading(task=task, decided=decided)), drawn()
    for name, body in pictures.items():
        (tmp_path / name).write_bytes(body)
    monkeypatch.chdir(tmp_path)
    written = vitrail("predict", model, *pictures)
    assert written.code == 0, written.err
    with serving(model, "--workers", 1) as server, visiting(browser, f"http://127.0.0.1:{server.port}") as hands:
        hands.pick(pictures | {"notes.txt": b"no picture"})
        hands.answered(7)
        expect(hands.page.locator("tr.failed")).to_have_count(1)
        expect(hands.row("notes.txt").locator(".answer, .n").first).not_to_be_empty()
        same(rows(hands.saved().decode()), rows(written.out))
        for name in ("0.png", "2.tif"):
            hands.row(name).click()
            expect(hands.page.locator("#detail-name")).to_have_text(name)
            expect(hands.page.locator("#map")).to_be_visible()
            expect(hands.page.locator("#caption")).to_contain_text("32 × 32 pixels in 4 × 4 patches")
        expect(hands.page.locator("tr.answered img.thumb")).to_have_count(6)
        for method in ("attention", "integrated"):
            hands.page.select_option("#method", method)
            expect(hands.page.locator("#caption")).to_contain_text(f"{method} · ")


def test_the_token_of_the_server_opens_its_page(browser, tmp_path):
    model, (name, body) = saved(tmp_path / "model"), next(iter(drawn().items()))
    server = serving(model, "--workers", 1, VITRAIL_TOKEN=TOKEN)
    with server as found, visiting(browser, f"http://127.0.0.1:{found.port}") as hands:
        expect(hands.page.locator("#ask-token")).to_be_visible()
        hands.pick({name: body})
        expect(hands.page.locator("#progress-says")).to_contain_text("token")
        hands.page.fill("#token", TOKEN)
        hands.page.keyboard.press("Enter")
        hands.answered(1)
        expect(hands.page.locator("#map")).to_be_visible()


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def same(page: Sequence[Sequence[str]], predict: Sequence[Sequence[str]]) -> None:
    """Equal headers and words, and scores within 1e-4: the server answers other pictures at the same time."""
    assert page[0] == predict[0] and len(page) == len(predict)
    for ours, theirs in zip(page[1:], predict[1:], strict=True):
        for cell, other in zip(ours, theirs, strict=True):
            assert cell == other or float(cell) == pytest.approx(float(other), rel=1e-4, abs=1e-4)
    assert {Path(row[0]).name for row in page[1:]} == set(drawn())
