"""Take the pictures of docs/reports.md from the three runs whose commands are on that page.

    python docs/report_pictures.py runs/fashion runs/labels runs/levels
    python docs/report_pictures.py runs/levels                             # the pictures of one of them

Each report is built again from what its run has stored, and seen by a real browser as wide as a desk and as a phone.
Fashion-MNIST (MIT) is shown as it is. The cells of ELPV are under CC BY-NC-SA 4.0 and this repository is not, so every
picture on their pages is blanked: one grey, nothing of a cell is left. Needs chromium.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from PIL import Image

from vitrail.report.audience import AudienceRequest
from vitrail.report.page import build_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parent / "images" / "report"
DESK, PHONE = (1280, 900), (390, 844)
"""Width and height of what is seen at once."""
COLOURS = 256
BLANK = "img { filter: contrast(0); }"
"""All of a picture becomes the same grey."""
LEFT_BEHIND = shutil.ignore_patterns("checkpoints", "history", "exports", "*.safetensors")
INSPECTION = AudienceRequest(
    audience="inspection", positive="defective", prevalence="0.01", parts_per_minute=180.0, hours=8.0
)
RADIOLOGY = AudienceRequest(audience="radiology", prevalence="defective=0.02,poly=0.6")


class Shot(NamedTuple):
    """One picture of a page."""

    name: str
    run: Literal["fashion", "labels", "levels"]
    audience: AudienceRequest | None = None
    size: tuple[int, int] = DESK
    scheme: Literal["light", "dark"] = "light"
    begin: str = ""
    """A heading to begin at; none shows what is seen first."""
    end: str = ""
    """The heading to stop before."""


SHOTS = (
    Shot("fashion", "fashion"),
    Shot("fashion-phone", "fashion", size=PHONE),
    Shot("errs", "fashion", begin="Where it errs", end="How far to trust an answer"),
    Shot("trust", "fashion", begin="How far to trust an answer", end="Sets of classes"),
    Shot("maps", "fashion", begin="Where its answers come from", end="Some others"),
    Shot("inspection", "labels", INSPECTION),
    Shot("inspection-dark", "labels", INSPECTION, scheme="dark"),
    Shot("inspection-phone", "labels", INSPECTION, PHONE),
    Shot("threshold", "labels", INSPECTION, begin="Choose a threshold", end="What is left unanswered, and why"),
    Shot("radiology-phone", "labels", RADIOLOGY, PHONE, "dark"),
    Shot("hundred", "labels", RADIOLOGY, begin="In similar patients", end="What is left unanswered, and why"),
    Shot("levels", "levels"),
)


def main() -> None:
    """Every picture of the runs that are named, from copies of them."""
    from playwright.sync_api import sync_playwright

    runs = {Path(word).name: Path(word) for word in sys.argv[1:]}
    if not runs or runs.keys() - {shot.run for shot in SHOTS}:
        sys.exit(f"Name runs/fashion, runs/labels or runs/levels. Got {', '.join(runs) or 'none'}.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        copies = {name: copy(run, Path(folder) / name) for name, run in runs.items()}
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for shot in (shot for shot in SHOTS if shot.run in runs):
            keep(
                take_screenshot(open_report(browser, build_report(copies[shot.run], shot.audience), shot), shot),
                IMAGES / f"{shot.name}.png",
            )
        browser.close()


def copy(run: Path, place: Path) -> Path:
    """Of a run folder what a report is built from."""
    shutil.copytree(run, place, ignore=LEFT_BEHIND)
    return place


def open_report(browser: Browser, path: Path, shot: Shot) -> Page:
    """The report, without the pictures of cells."""
    viewport: Any = {"width": shot.size[0], "height": shot.size[1]}
    page = browser.new_page(viewport=viewport, color_scheme=shot.scheme, reduced_motion="reduce")
    page.goto(path.as_uri())
    if shot.run != "fashion":
        page.add_style_tag(content=BLANK)
    return page


def take_screenshot(page: Page, shot: Shot) -> bytes:
    """What is seen first, or all between two headings, as PNG."""
    if not shot.begin:
        return page.screenshot()
    top, bottom = (_top(page, heading) for heading in (shot.begin, shot.end))
    room: Any = {"x": 0, "y": top - 24, "width": shot.size[0], "height": bottom - top}
    return page.screenshot(full_page=True, clip=room)


def _top(page: Page, heading: str) -> float:
    """Where a heading begins on the whole page, in pixels from its top."""
    box = page.get_by_role("heading", name=heading, exact=True).first.bounding_box()
    assert box is not None, f"{heading} is not seen"
    return float(box["y"])


def keep(data: bytes, path: Path) -> None:
    """Write a small PNG."""
    path.parent.mkdir(exist_ok=True)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
