"""A browser that is cut off from every network but this machine, and hands to use the page of a server in it."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, FileChooser, Page, expect, sync_playwright

PATIENCE = 30_000
"""Milliseconds that a busy machine may take for anything."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
CUT_OFF = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
TYPES = {"png": "image/png", "jpg": "image/jpeg", "tif": "image/tiff"}
TRANSFER = """files => {
    const transfer = new DataTransfer();
    for (const [name, type, text] of files) {
        const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
        transfer.items.add(new File([bytes], name, { type }));
    }
    return transfer;
}"""
FOCUS = """selector => {
    const here = document.activeElement;
    return here.matches(selector) && here.matches(":focus-visible") && getComputedStyle(here).outlineStyle !== "none";
}"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser that this machine has, with a drawn camera and no network."""
    expect.set_options(timeout=PATIENCE)
    path = next(found for found in map(shutil.which, NAMES) if found)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", CUT_OFF, *CAMERA])
        yield browser
        browser.close()


class Hands:
    """What a person does with the page."""

    def __init__(self, page: Page):
        self.page = page
        self.choosers: list[FileChooser] = []
        # from the beginning: an interception that is asked for just before the key may come after it
        page.on("filechooser", lambda chooser: self.choosers.append(chooser))

    def pick(self, pictures: Mapping[str, bytes]) -> None:
        """Choose files in the browser's own window."""
        files = [{"name": name, "mimeType": kind(name), "buffer": body} for name, body in pictures.items()]
        self.page.set_input_files("#files", files)  # type: ignore[arg-type]

    def carry(self, pictures: Mapping[str, bytes]) -> Any:
        """Files as they hang on a pointer or lie in the clipboard."""
        files = [[name, kind(name), base64.b64encode(body).decode()] for name, body in pictures.items()]
        return self.page.evaluate_handle(TRANSFER, files)

    def answered(self, count: int) -> None:
        """Wait until so many pictures are answered or refused."""
        expect(self.page.locator("tr.answered, tr.failed")).to_have_count(count)

    def explained(self, said: str = "relevance · ") -> None:
        """Wait for the map of the chosen picture."""
        expect(self.page.locator("#map")).to_be_visible()
        expect(self.page.locator("#caption")).to_contain_text(said)

    def until(self, true: str) -> None:
        """Wait until an expression is true (Playwright's own waiting needs eval, which the page's policy forbids)."""
        for _ in range(100):
            if self.page.evaluate(true):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"{true} never became true.")

    def row(self, name: str) -> Any:
        """The row of a picture in the table."""
        return self.page.locator("tbody tr").filter(has_text=name)

    def open_chooser(self, key: str) -> FileChooser:
        """What a key, pressed once, opens where the focus is."""
        before = len(self.choosers)
        self.page.keyboard.press(key)
        for _ in range(100):
            if len(self.choosers) > before:
                return self.choosers[before]
            self.page.wait_for_timeout(50)
        raise AssertionError("The key opens no chooser.")

    def tab_to(self, selector: str) -> None:
        """Press Tab until the focus is there, and can be seen."""
        for _ in range(60):
            self.page.keyboard.press("Tab")
            if self.page.evaluate(FOCUS, selector):
                return
        raise AssertionError(f"Tab never reaches {selector}, or its focus cannot be seen.")

    def colour(self, row: int, column: int, rows: int = 8, columns: int = 8) -> list[int]:
        """Red, green and blue in the middle of a patch of the map."""
        middle = [(column + 0.5) / columns, (row + 0.5) / rows]
        read = """([x, y]) => {
            const map = document.getElementById("map");
            const at = [x * map.width, y * map.height].map(Math.floor);
            return [...map.getContext("2d").getImageData(...at, 1, 1).data.slice(0, 3)];
        }"""
        found: list[int] = self.page.evaluate(read, middle)
        return found

    def point(self, row: int, column: int, rows: int = 8, columns: int = 8) -> None:
        """Hold the pointer over a patch of the map."""
        box = self.page.locator("#map").bounding_box()
        assert box is not None
        self.page.locator("#map").hover(
            position={"x": box["width"] * (column + 0.5) / columns, "y": box["height"] * (row + 0.5) / rows}
        )

    def saved(self) -> bytes:
        """The CSV file that its button gives."""
        return self.download("#save", "predictions.csv")

    def download(self, selector: str, name: str) -> bytes:
        """The file that a button gives, which has this name."""
        with self.page.expect_download() as download:
            self.page.click(selector)
        assert download.value.suggested_filename == name
        return Path(download.value.path()).read_bytes()

    def drag(self, selector: str, first: tuple[float, float], last: tuple[float, float]) -> None:
        """Press, move and let go of the pointer, from one place of an element to another, each in 0..1."""
        self.page.locator(selector).scroll_into_view_if_needed()
        box = self.page.locator(selector).bounding_box()
        assert box is not None
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (first, last)]
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        self.page.mouse.move(*places[1], steps=8)
        self.page.mouse.up()


@contextmanager
def visiting(browser: Browser, url: str, width: int = 1280, height: int = 900) -> Iterator[Hands]:
    """The page in a window of its own; afterwards nothing has gone wrong in it, and it has asked its server only."""
    context = browser.new_context(viewport={"width": width, "height": height}, permissions=["camera"])
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    wrong: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    hands = Hands(page)
    page.goto(url)
    expect(page.locator("#limits")).not_to_be_empty()
    yield hands
    context.close()
    assert asked and not [one for one in asked if not one.startswith((f"{url}/", f"blob:{url}/", "data:image/"))]
    assert not [one for one in wrong if not one.startswith("Failed to load resource")]  # a refusal that a test wants


def kind(name: str) -> str:
    """The content type that a browser gives a file of that name."""
    return TYPES.get(name.rpartition(".")[2], "application/octet-stream")
