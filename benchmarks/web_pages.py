"""Exported pages in headless Chromium: sizes, milliseconds a picture with one thread and several, screenshots, engines.

    python benchmarks/web_pages.py RUN PICTURES --runtime onnxruntime-web-1.30.0.tgz --name digits

Exports the run as one file and as a folder, each proved on up to 200 held-out pictures. The file is opened from disk
without a network. The folder is served by this process, to a browser that has service workers and so threads, and to
one that has none; then the server stops, and the page is opened once more. Each answers the same PICTURES (a folder),
in turns; figures are medians of the rounds. With --webgpu Chromium draws by SwiftShader, a graphics processor made of
software: whether the page takes that way and gives the same scores, not how fast it is.

Writes benchmarks/results/web-pages.json, and screenshots of 1280 and 390 pixels into --shots.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from making.records import VITRAIL, Results, Row
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from vitrail.export.browser_proof import NO_NETWORK, _find_chromium, _open_address, _wait_for_answers, _wait_for_model
from vitrail.runtime import cpu_name

WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
ENGINE = "dt:text-is('Computed') + dd"
EXPLAINED = "document.getElementById('method').selectedIndex = {}"
"""Which explanation is drawn by itself; -1 is none."""


def main() -> None:
    """Measure the pages of one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--runtime", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--webgpu", action="store_true")
    parser.add_argument("--shots", type=Path)
    options = parser.parse_args()
    pictures = sorted(path for path in options.pictures.rglob("*") if path.is_file())[: options.count]
    results = Results("web-pages")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        pages = {form: Path(folder) / name for form, name in (("file", "page.html"), ("folder", "page"))}
        said = {form: export_page(options.run, page, options.runtime) for form, page in pages.items()}
        arguments = ["--no-sandbox", NO_NETWORK, *(WEBGPU if options.webgpu else ())]
        browser = driver.chromium.launch(executable_path=_find_chromium(), args=arguments)
        key = {"run": options.name, "webgpu": options.webgpu}
        row = measure_pages(browser, pages, pictures, options.rounds, options.shots, options.name)
        row |= {"browser": browser.version, "processor": cpu_name(), "pictures": len(pictures), "proofs": said}
        results.rows = [one for one in results.rows if one | key != one]
        print(results.row(key, lambda: row))
        browser.close()


def export_page(run: Path, page: Path, runtime: Path) -> Row:
    """Write a proved page; its proof, and its size in bytes."""
    words = ["export", run, "--to", "web", "--out", page, "--runtime", runtime, "--prove"]
    done = subprocess.run([VITRAIL, *map(str, words)], capture_output=True, text=True, check=True)
    (proof,) = (line.strip() for line in done.stdout.splitlines() if line.strip().startswith("proved in"))
    files = [page] if page.is_file() else [path for path in page.rglob("*") if path.is_file()]
    return {"proof": proof, "bytes": sum(path.stat().st_size for path in files)}


def measure_pages(
    browser: Browser, pages: dict[str, Path], pictures: Sequence[Path], rounds: int, shots: Path | None, name: str
) -> Row:
    """Milliseconds a picture and the engine of each way to open the pages."""
    with _open_address(pages["file"]) as file, ExitStack() as server:
        folder = server.enter_context(_open_address(pages["folder"]))
        contexts = {
            "file from disk": (browser.new_context(offline=True), file),
            "folder, no service worker": (browser.new_context(service_workers="block"), folder),
            "folder": (browser.new_context(), folder),
        }
        tabs = {way: open_tab(context, address) for way, (context, address) in contexts.items()}
        engines = {way: read_engine(tab) for way, tab in tabs.items()}
        times: dict[str, list[float]] = {way: [] for way in tabs}
        for turn in range(rounds + 1):
            for way, tab in tabs.items():
                seconds = answer(tab, pictures)
                if turn:  # the first is slower
                    times[way].append(1000 * seconds / len(pictures))
        if shots is not None:
            take_shots(tabs["folder"], pictures, shots, name)
        server.close()
        tab = open_tab(contexts["folder"][0], folder)
        answer(tab, pictures[:2])
        engines["folder, its server gone"] = read_engine(tab)
    return {
        "ways": {
            way: {"milliseconds": round(statistics.median(times[way]), 1), "engine": engines[way]} for way in tabs
        },
        "without_server": engines["folder, its server gone"],
    }


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
