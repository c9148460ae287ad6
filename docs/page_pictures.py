"""Take the pictures of docs/page.md from a server of a model of digits: `python docs/page_pictures.py ADDRESS RUN`.

    vitrail train digits --minutes 2 --out runs/digits
    vitrail serve runs/digits
    python docs/page_pictures.py http://127.0.0.1:8000 runs/digits

It shows twelve digits that the run held out, and a photograph, which is none. Needs chromium and Playwright.
"""

from __future__ import annotations

import csv
import io
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parent / "images"
SHOWN = 12


def main() -> None:
    """One answer, a batch, and the same on a phone in the dark."""
    from playwright.sync_api import sync_playwright

    address, run = sys.argv[1], Path(sys.argv[2])
    files = [*held_out(run), photograph()]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        one = opened(browser, address, (1120, 820), "light", files[:1])
        keep(one, "page.png")
        batch = opened(browser, address, (1120, 820), "light", files)
        batch.locator("#batch").scroll_into_view_if_needed()
        batch.locator("thead th.n button").click()
        batch.locator("#batch").screenshot(path=IMAGES / "page-batch.png")
        squeeze(IMAGES / "page-batch.png")
        keep(opened(browser, address, (390, 844), "dark", files[:1]), "page-phone.png")
        browser.close()


def held_out(run: Path) -> list[dict[str, Any]]:
    """Pictures of the run's test split, as PNG files."""
    from sklearn.datasets import load_digits

    images = load_digits().images
    with open(run / "predictions" / "test.csv", encoding="utf-8", newline="") as file:
        places = [int(row["id"].rpartition("/")[2]) for row in csv.DictReader(file)][:SHOWN]
    drawn = (np.round(images[place] * 255 / 16).astype(np.uint8) for place in places)
    return [as_file(f"digit {place}.png", Image.fromarray(one)) for place, one in zip(places, drawn, strict=True)]


def photograph() -> dict[str, Any]:
    """scikit-learn's flower, which no model of digits has seen the like of."""
    from sklearn.datasets import load_sample_image

    return as_file("flower.png", Image.fromarray(load_sample_image("flower.jpg")).resize((320, 213)))


def as_file(name: str, image: Image.Image) -> dict[str, Any]:
    """As the browser takes it."""
    data = io.BytesIO()
    image.save(data, "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": data.getvalue()}


def opened(browser: Browser, address: str, size: tuple[int, int], scheme: Any, files: list[dict[str, Any]]) -> Page:
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


def keep(page: Page, name: str) -> None:
    """What stands in the window."""
    page.screenshot(path=IMAGES / name)
    squeeze(IMAGES / name)


def squeeze(path: Path) -> None:
    """The same picture in 256 colours, a third of the bytes."""
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
