"""The report in a real browser: a first page shows its four answers at once, and no page is wider than a phone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from end_to_end.page_hands import chromium
from unit.report.reader_sample import labels, stored, two_classes
from vitrail.evaluate.decisions import Decisions
from vitrail.report import page
from vitrail.report.audience import AudienceRequest

pytestmark = pytest.mark.needs_chromium

PHONE, DESK = (390, 844), (1280, 900)
FINDINGS = ("pleural thickening", "cardiomegaly", "pneumothorax")
READERS = ("radiology", "inspection")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """One of two classes and one of labels with long names."""
    folder = tmp_path_factory.mktemp("runs")
    test, valid, decided = two_classes()
    films, more = (replace(table, classes=FINDINGS) for table in labels())
    return {
        "classes": stored(folder / "classes", test, valid, decided, sizes=96),
        "labels": stored(folder / "labels", films, more, Decisions(thresholds=(0.5, 0.5, 0.5)), sizes=96),
    }


def opened(browser: Browser, path: Path, size: tuple[int, int]):
    seen = browser.new_page(viewport={"width": size[0], "height": size[1]})
    seen.goto(path.as_uri())
    return seen


@pytest.mark.first(1)
@pytest.mark.parametrize("size", [PHONE, DESK])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_V15_false_alarms_misses_silence_and_the_worst_failure_are_seen_without_scrolling(
    kind, reader, size, browser, runs
):
    seen = opened(browser, page.build_report(runs[kind], AudienceRequest(audience=reader)), size)
    cards = seen.locator(".card")
    assert cards.count() == 4
    for card in cards.all():
        box = card.bounding_box()
        assert box["y"] + box["height"] <= size[1], card.inner_text()
        assert card.locator(".big, img").first.is_visible(), card.inner_text()
    seen.close()


@pytest.mark.parametrize("size", [PHONE, (718, 1000)])
def test_a_long_name_of_a_model_stays_in_its_column_on_a_phone_and_on_paper(size, browser, runs):
    seen = opened(browser, page.build_report(runs["classes"]), size)
    seen.emulate_media(media="print" if size != PHONE else "screen")
    seen.evaluate(
        "document.querySelectorAll('dl.facts dd').forEach(each => each.prepend('vit_femto_patch12_96x1024 '))"
    )
    assert seen.evaluate("[...document.querySelectorAll('dl.facts dd')].every(e => e.scrollWidth <= e.clientWidth)")
    seen.close()


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_no_page_is_wider_than_a_phone(kind, browser, runs):
    for asked in (None, *(AudienceRequest(audience=reader) for reader in READERS)):
        seen = opened(browser, page.build_report(runs[kind], asked), PHONE)
        widths = seen.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1] == PHONE[0]
        seen.close()
