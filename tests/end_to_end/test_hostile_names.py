"""E18: whatever a model's classes, its name or a client's files are called, words stay words on every page."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from corpus.writing import encoded, photo
from served import asked, reading, saved, serving
from serving_here import serving_here
from vitrail.serve.static_files import PAGE_FOLDER

HOSTILE = "<img src=x onerror=document.title='owned'>"
NAMES = (HOSTILE, "<script>document.title='owned'</script>", "\"'&lt;")
PICTURE = encoded(photo(), "PNG")
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
"""What would take words for a page."""


def hostile():
    """A model whose classes are markup."""
    return dataclasses.replace(reading(), classes=NAMES)


def test_e18_answers_are_json_that_no_browser_takes_for_a_page():
    with serving_here(hostile()) as here:
        for path, body in (("/about", None), ("/predict", PICTURE), ("/explain", PICTURE)):
            said = asked(here.port, path, body, {"X-Filename": "%3Cscript%3E.png"})
            assert said.status == 200 and said.headers["content-type"].startswith("application/json")
            assert said.headers["x-content-type-options"] == "nosniff"
        assert set(NAMES) == {name.removeprefix("prob_") for name in predicted(here.port) if name.startswith("prob_")}
        pages = [asked(here.port, path).body.decode() for path in ("/", "/docs")]
        assert not any(name in page for name in NAMES[:2] for page in pages)


def predicted(port: int) -> dict[str, object]:
    found: dict[str, object] = json.loads(asked(port, "/predict", PICTURE).body)
    return found


def test_e18_no_file_of_the_page_makes_markup_of_words():
    scripts = sorted(PAGE_FOLDER.glob("*.js"))
    assert len(scripts) > 5
    for path in scripts:
        assert not MARKUP.findall(path.read_text(encoding="utf-8")), path


@pytest.mark.needs_chromium
@pytest.mark.slow
def test_e18_a_browser_shows_markup_in_names_as_letters(tmp_path):
    from playwright.sync_api import expect

    from end_to_end.page_hands import chromium, visiting

    model = saved(tmp_path / "model", hostile())
    with (
        chromium() as browser,
        serving(model, "--workers", 1) as server,
        visiting(browser, f"http://127.0.0.1:{server.port}") as hands,
    ):
        before = hands.page.title()
        hands.pick({f"{HOSTILE.replace('/', '')}.png": PICTURE, "b.png": PICTURE})
        hands.answered(2)
        hands.row("b.png").click()
        expect(hands.page.locator("#detail-name")).to_have_text("b.png")
        expect(hands.page.locator("#map")).to_be_visible()
        assert hands.page.locator("script:not([src]), img[onerror]").count() == 0
        assert HOSTILE in hands.page.inner_text("body") and hands.page.title() == before
