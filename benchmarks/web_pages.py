"""Exported pages in headless Chromium: sizes, milliseconds a picture with one thread and several, screenshots, engines.

    vitrail export RUN --to web --out page.html --runtime onnxruntime-web-1.30.0.tgz --prove
    vitrail export RUN --to web --out page --runtime onnxruntime-web-1.30.0.tgz --prove
    python benchmarks/web_pages.py PICTURES --file page.html --folder page --name digits

A file is opened from disk without a network. A folder is served by this process, to a browser that has service workers
and so threads, and to one that has none; then the server stops, and the page is opened once more. Each answers the same
PICTURES (a folder), in turns; figures are medians of the rounds. With --webgpu Chromium draws by SwiftShader, a
graphics processor made of software: whether the page takes that way and gives the same scores, not how fast it is.

Writes benchmarks/results/web-pages.json, and screenshots of 1280 and 390 pixels into --shots.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from making.records import Results, Row
from playwright.sync_api import BrowserContext, Page, sync_playwright

from vitrail.export.browser_proof import NO_NETWORK, _find_chromium, _open_address, _wait_for_answers, _wait_for_model
from vitrail.runtime import cpu_name

WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
ENGINE = "dt:text-is('Computed') + dd"
EXPLAINED = "document.getElementById('method').selectedIndex = {}"
"""Which explanation is drawn by itself; -1 is none."""


def main() -> None:
    """Measure the pages of one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--webgpu", action="store_true")
    parser.add_argument("--shots", type=Path)
    options = parser.parse_args()
    pictures = sorted(path for path in options.pictures.rglob("*") if path.is_file())[: options.count]
    results = Results("web-pages")
    with sync_playwright() as driver, ExitStack() as server:
        arguments = ["--no-sandbox", NO_NETWORK, *(WEBGPU if options.webgpu else ())]
        browser = driver.chromium.launch(executable_path=_find_chromium(), args=arguments)
        ways: dict[str, tuple[BrowserContext, str]] = {}
        if options.file is not None:
            ways["file from disk"] = browser.new_context(offline=True), options.file.resolve().as_uri()
        if options.folder is not None:
            address = server.enter_context(_open_address(options.folder))
            ways["folder, no service worker"] = browser.new_context(service_workers="block"), address
            ways["folder"] = browser.new_context(), address
        tabs = {way: open_tab(context, address) for way, (context, address) in ways.items()}
        engines = {way: read_engine(tab) for way, tab in tabs.items()}
        times = measure(tabs, pictures, options.rounds)
        if options.shots is not None:
            for way, tab in tabs.items():
                take_shots(tab, pictures, options.shots, f"{options.name}-{way.replace(', ', '-').replace(' ', '-')}")
        server.close()
        if options.folder is not None:
            tab = open_tab(*ways["folder"])
            answer(tab, pictures[:2])
            engines["folder, its server gone"] = read_engine(tab)
        row = {
            "bytes": {page.name: size_of(page) for page in (options.file, options.folder) if page is not None},
            "milliseconds": times, "engines": engines, "pictures": len(pictures), "rounds": options.rounds,
            "browser": browser.version, "processor": cpu_name(),
        }  # fmt: skip
        browser.close()
    key = {"run": options.name, "webgpu": options.webgpu}
    results.rows = [one for one in results.rows if one | key != one]
    print(json.dumps(results.row(key, lambda: row), indent=1))


def measure(tabs: Mapping[str, Page], pictures: Sequence[Path], rounds: int) -> Row:
    """Median milliseconds a picture of each tab, in turns, after a round that is not counted."""
    times: dict[str, list[float]] = {way: [] for way in tabs}
    for turn in range(rounds + 1):
        for way, tab in tabs.items():
            seconds = answer(tab, pictures)
            if turn:
                times[way].append(1000 * seconds / len(pictures))
    return {way: round(statistics.median(found), 1) for way, found in times.items()}


def size_of(page: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    return sum(path.stat().st_size for path in ([page] if page.is_file() else page.rglob("*")) if path.is_file())


def open_tab(context: BrowserContext, address: str) -> Page:
    """A tab whose page has read its model."""
    tab = context.new_page()
    tab.goto(address)
    _wait_for_model(tab)
    tab.evaluate(EXPLAINED.format(-1))
    return tab


def read_engine(tab: Page) -> str:
    """What the page says of its engine."""
    return tab.locator(ENGINE).text_content() or ""


def answer(tab: Page, pictures: Sequence[Path]) -> float:
    """Seconds until all pictures are answered, without a map of one of them, which would run in between."""
    began = time.perf_counter()
    tab.set_input_files("#files", [*map(str, pictures)])
    _wait_for_answers(tab, len(pictures))
    seconds = time.perf_counter() - began
    assert not tab.locator("tr.failed").count(), tab.locator("tr.failed").first.inner_text()
    tab.locator("#clear").click()
    return seconds


def take_shots(tab: Page, pictures: Sequence[Path], folder: Path, name: str) -> None:
    """Screenshots of the page with pictures, their answers, a map and the part about the model."""
    folder.mkdir(parents=True, exist_ok=True)
    tab.evaluate(EXPLAINED.format(0))
    tab.set_input_files("#files", [*map(str, pictures)])
    _wait_for_answers(tab, len(pictures))
    tab.locator("#map").wait_for()
    tab.evaluate("document.getElementById('about').open = true")
    for width, height in ((1280, 900), (390, 844)):
        tab.set_viewport_size({"width": width, "height": height})
        tab.screenshot(path=folder / f"{name}-{width}.png", full_page=True)


if __name__ == "__main__":
    main()
