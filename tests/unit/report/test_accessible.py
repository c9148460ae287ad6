"""The page for everybody: by keyboard, by screen reader, on paper, on a phone, and small enough to be sent."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser

import numpy as np
import pytest

from unit.evaluate import test_regression_predictions
from unit.report.reader_sample import labels, stored, two_classes
from unit.report.test_task_pages import stored as stored_number
from vitrail.evaluate.decisions import Decisions
from vitrail.report import page
from vitrail.report.audience import AudienceRequest


class Outline(HTMLParser):
    """Headings, and what a screen reader would have to guess."""

    def __init__(self):
        super().__init__()
        self.levels: list[int] = []
        self.silent: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        self.ids += [has["id"]] if "id" in has else []
        if re.fullmatch(r"h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if tag == "a":
            self.targets.append(has["href"])
        needs = {"th": "scope", "img": "alt", "svg": "aria-label", "html": "lang"}.get(tag)
        if needs and not has.get(needs):
            self.silent.append(f"{tag} {has}")
        if "wide" in has.get("class", "").split() and has.get("tabindex") != "0":
            self.silent.append(f"{tag} scrolls and cannot be reached")


def pages(folder):
    test, valid, decided = two_classes()
    yield page.build_report(stored(folder / "two", test, valid, decided)).read_text()
    for reader in ("radiology", "inspection"):
        yield page.build_report(folder / "two", AudienceRequest(audience=reader)).read_text()
    test, valid = labels()
    stored(folder / "labels", test, valid, Decisions(thresholds=(0.5, 0.5, 0.5)))
    yield page.build_report(folder / "labels", AudienceRequest(audience="radiology")).read_text()
    (folder / "number").mkdir()
    truth = np.arange(40.0)
    yield stored_number(folder / "number", test_regression_predictions.table(truth, truth + 1, ("age",)))


def test_headings_are_in_order_tables_are_named_pictures_have_words_and_links_lead_somewhere(tmp_path):
    for html in pages(tmp_path):
        seen = Outline()
        seen.feed(html)
        assert seen.levels[:2] == [1, 2] and seen.levels.count(1) == 1
        assert all(after <= before + 1 for before, after in zip(seen.levels, seen.levels[1:], strict=False))
        assert seen.silent == []
        assert len(seen.ids) == len(set(seen.ids))
        assert seen.targets[0] == "#main" and {one.removeprefix("#") for one in seen.targets} <= set(seen.ids)


def test_focus_is_seen_and_there_is_a_style_for_paper_for_dark_rooms_and_for_phones(tmp_path):
    html = next(pages(tmp_path))
    for words in (":focus-visible", "@media print", "prefers-color-scheme: dark", "max-width: 36rem", "device-width"):
        assert words in html


@pytest.mark.slow
def test_V14_V18_a_page_of_ten_thousand_large_pictures_takes_less_than_a_minute_and_5_MB(tmp_path):
    test, valid, decided = two_classes(n=10_000)
    folder = stored(tmp_path, test, valid, decided, sizes=512)  # noise, which compresses worst
    for asked in (None, AudienceRequest(audience="inspection")):
        began = time.process_time()
        assert page.build_report(folder, asked).stat().st_size < 5_000_000
        assert time.process_time() - began < 60
