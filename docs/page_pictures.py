"""Take the pictures of docs/page.md from a server of a model of planted pictures, which are drawn and free.

    vitrail train planted --minutes 3 --out runs/planted
    vitrail serve runs/planted
    python docs/page_pictures.py http://127.0.0.1:8000

It shows new pictures of that kind, some with glyphs of two classes, and a photograph, which is none. Needs chromium.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from vitrail.data.sources.synthetic import CLASSES, make_synthetic_images, make_synthetic_pairs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parent / "images"
SEED = 7


def main() -> None:
    """One answer, a batch, and the same on a phone in the dark."""
    from playwright.sync_api import expect, sync_playwright

    address = sys.argv[1]
    files = [*write_planted_images(), photograph()]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        one = open_page(browser, address, (1120, 1010), "light", files[3:4])
        one.locator("#method").select_option("integrated")
        expect(one.locator("#caption")).to_contain_text("integrated")
        one.locator("#map").focus()
        one.keyboard.press("ArrowDown")  # goes to the strongest patch
        one.screenshot(path=IMAGES / "page.png")
        batch = open_page(browser, address, (1120, 820), "light", files)
        batch.locator("thead th.n button").click()
        batch.mouse.move(0, 0)
        batch.locator("#batch").screenshot(path=IMAGES / "page-batch.png")
        open_page(browser, address, (390, 844), "dark", files[-1:]).screenshot(path=IMAGES / "page-phone.png")
        browser.close()


def write_planted_images() -> list[dict[str, Any]]:
    """Eight pictures with one glyph, three with two, as PNG files."""
    single, pairs = make_synthetic_images(8, SEED), make_synthetic_pairs(3, SEED)
    names = [f"{CLASSES[target]} {place}.png" for place, target in enumerate(single.targets.tolist())]
    both = [f"{CLASSES[one]} and {CLASSES[other]}.png" for one, other in pairs.targets.tolist()]
    drawn = [*single.images, *pairs.images]
    return [as_file(name, Image.fromarray(one)) for name, one in zip([*names, *both], drawn, strict=True)]


def photograph() -> dict[str, Any]:
    """scikit-learn's flower, which no model of drawn glyphs has seen the like of."""
    from sklearn.datasets import load_sample_image

    return as_file("flower.png", Image.fromarray(load_sample_image("flower.jpg")).resize((320, 213)))


def as_file(name: str, image: Image.Image) -> dict[str, Any]:
    """As the browser takes it."""
    data = io.BytesIO()
    image.save(data, "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": data.getvalue()}


def open_page(browser: Browser, address: str, size: tuple[int, int], scheme: Any, files: list[dict[str, Any]]) -> Page:
    """The page with these pictures, answered and the first one explained."""
    from playwright.sync_api import expect

    viewport: Any = {"width": size[0], "height": size[1]}
    page = browser.new_page(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    page.goto(address)
    expect(page.locator("#limits")).not_to_be_empty()
    page.set_input_files("#files", files)  # type: ignore[arg-type]
    expect(page.locator("tr.answered")).to_have_count(len(files))
    page.locator("#map").wait_for()
    return page


if __name__ == "__main__":
    main()
