"""Take the pictures of docs/gallery.md from the reports of three runs; of the solar cells only charts, never a picture.

    vitrail train digits --steps 600 --out runs/digits
    python benchmarks/fashion_mnist.py --minutes 13            # leaves its runs in runs/
    python benchmarks/elpv.py ELPV --ways scratch --minutes 5  # the same
    python docs/gallery_pictures.py runs/digits runs/FASHION runs/CELLS

Reports are built again first, so that they look as they do today. Needs chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.report.page import build_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parent / "images" / "gallery"
WIDTH, TOP = 1120, 560


def main() -> None:
    """The top of one report, two parts of others, one of them by night."""
    from playwright.sync_api import sync_playwright

    digits, fashion, cells = map(Path, sys.argv[1:])
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        open_report(browser, digits, "light").screenshot(path=IMAGES / "digits.png")
        part(open_report(browser, fashion, "dark"), "Where it errs", "How far to trust an answer", "fashion.png")
        part(open_report(browser, cells, "light"), "How far to trust an answer", "Class by class", "cells.png")
        browser.close()


def open_report(browser: Browser, run: Path, scheme: Any) -> Page:
    """A run's report in a window."""
    page = browser.new_page(viewport={"width": WIDTH, "height": TOP}, color_scheme=scheme)
    page.goto(build_report(run).resolve().as_uri())
    return page


def part(page: Page, first: str, last: str, name: str) -> None:
    """What stands from one heading to the next."""
    tops = []
    for words in (first, last):
        box = page.get_by_role("heading", name=words, exact=True).bounding_box()
        assert box is not None, words
        tops.append(box["y"])
    clip: Any = {"x": 0, "y": tops[0] - 16, "width": WIDTH, "height": tops[1] - tops[0]}
    page.screenshot(path=IMAGES / name, full_page=True, clip=clip)


if __name__ == "__main__":
    main()
