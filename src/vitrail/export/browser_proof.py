"""Proof of an exported page: headless Chromium answers image files, and its table is compared with the model.

Playwright drives the browser. The page gets files as a person gives them, and the comparison reads the CSV file that
its button saves, so all of the page is tested and nothing in it serves the test. The browser resolves no host name.
"""

from __future__ import annotations

import csv
import functools
import http.server
import importlib.util
import io
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..data.decoding.decode import decode_image
from ..errors import DamagedFileError, DataError, ResourceError
from ..evaluate.precision import get_scores
from ..evaluate.predictions import (
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
    read_class_predictions_csv,
    read_label_predictions_csv,
    read_regression_predictions_csv,
)
from ..formatting import format_count
from ..predict.predictor import AnsweringModel
from .browser_page import is_single_file
from .verify import (
    MIN_AGREEMENT,
    find_changed_decisions,
    max_score_difference,
    measure_agreement,
    predict_with_model,
    preprocess_decoded,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Programs that are looked for on the PATH."""
NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
"""Argument of Chromium: no name is resolved, and only this machine itself is reached."""
SCORE_TOLERANCE = 1e-3
"""Largest difference of two float32 scores; of numbers as a fraction of the largest (at least of 1)."""
STALL_SECONDS = 300
"""The page is given up after so long without another answer."""
POLL_MILLISECONDS = 100
READERS: dict[str, Callable[[Path], TaskPredictions]] = {
    "classification": read_class_predictions_csv,
    "multilabel": read_label_predictions_csv,
    "regression": read_regression_predictions_csv,
}


class ProofFile(NamedTuple):
    """An image file that a browser is to answer."""

    name: str
    """With the extension of its format; unique."""
    data: bytes
    is_exact: bool
    """Whether the page decodes it itself, to the same pixels; browsers decode JPEG, WebP, GIF and BMP."""


@dataclass(frozen=True, kw_only=True)
class ScoreComparison:
    """Scores and decisions of a page beside those of its model, on the same files."""

    num_images: int
    difference: float
    """Largest difference of two scores."""
    num_changed: int
    """Images with another decision: their scores are closer to a threshold than that difference."""
    same_fraction: float
    """Fraction of equal classes, of equal labels one by one, or of close numbers."""
    num_refused: int = 0
    """Files that the page does not read, though the model's interfaces do."""

    def __str__(self) -> str:
        refused = f", {self.num_refused:,} are not read there" if self.num_refused else ""
        decided = f"{self.num_changed:,} are decided otherwise" if self.num_changed else "every decision is the same"
        return (
            f"{format_count(self.num_images, 'picture')}: scores differ by at most {self.difference:.2g}, "
            f"{decided}{refused}"
        )


@dataclass(frozen=True, kw_only=True)
class BrowserProof:
    """What headless Chromium made of a page."""

    browser: str
    """Its name and version."""
    rate: float
    """Images per second, decoded and answered."""
    exact: ScoreComparison
    """On files that the page decodes itself."""
    decoded: ScoreComparison | None
    """On files that the browser decodes; None if there were none."""

    def __str__(self) -> str:
        text = f"proved in {self.browser}, {self.rate:.3g} pictures per second: {self.exact}"
        return text if self.decoded is None else f"{text}; as the browser decodes JPEG and the like, {self.decoded}"


class BrowserAnswers(NamedTuple):
    """What a page answered."""

    table: bytes
    """The CSV file of its button."""
    refused: Mapping[str, str]
    """Why files were not answered, by name."""
    browser: str
    seconds: float


def find_missing_tools() -> str:
    """What is missing on this machine to open a page in headless Chromium, with the way to get it; else empty."""
    missing = []
    if importlib.util.find_spec("playwright") is None:
        missing.append("Playwright (pip install playwright)")
    if _find_chromium() is None:
        missing.append("Chromium (apt-get install chromium)")
    return " and ".join(missing)


def prove_page(
    page: Path, model: AnsweringModel, files: Sequence[ProofFile], precision: str = "float32", force: bool = False
) -> BrowserProof:
    """Let headless Chromium answer files, and compare.

    Args:
        model: as the interfaces open it, whose predictions the page must give.
        files: at least two, one of them exact; each one that the model's interfaces read.
        precision: of the page's model; in float32 scores must be equal, else decisions must agree with float32.
        force: keep a page of reduced precision however many decisions differ.

    Raises:
        DamagedFileError: the page answers otherwise than the model, refuses an exact file, or asks for an address.
        ResourceError: Chromium does not start or stops answering.
    """
    answers = answer_in_browser(page, {file.name: file.data for file in files})
    exact = _compare(answers, model, [file for file in files if file.is_exact])
    others = [file for file in files if not file.is_exact]
    if exact.num_refused:
        name, why = next((name, why) for name, why in answers.refused.items() if name not in {f.name for f in others})
        raise DamagedFileError(
            f"The page does not answer {format_count(exact.num_refused, 'picture')} that the run answers, such as "
            f"{name}: {why} Nothing is kept; please report this model."
        )
    if precision == "float32" and not exact.difference <= SCORE_TOLERANCE:
        raise DamagedFileError(
            f"The page answers otherwise than the run: scores differ by up to {exact.difference:.3g} on "
            f"{format_count(exact.num_images, 'picture')}, and {SCORE_TOLERANCE:g} is allowed. Nothing is kept; please "
            "report this model."
        )
    if precision != "float32" and not force and exact.same_fraction < MIN_AGREEMENT:
        raise DamagedFileError(
            f"In {precision} the page decides {exact.same_fraction:.2%} of "
            f"{format_count(exact.num_images, 'picture')} as float32 "
            f"does, and {MIN_AGREEMENT:.0%} is asked for. Nothing is kept. Keep float32, or keep it with --force."
        )
    return BrowserProof(
        browser=answers.browser,
        rate=len(files) / answers.seconds,
        exact=exact,
        decoded=_compare(answers, model, others) if others else None,
    )


def _compare(answers: BrowserAnswers, model: AnsweringModel, files: Sequence[ProofFile]) -> ScoreComparison:
    """Compare the page's rows of these files with the model's predictions."""
    answered = [file for file in files if file.name not in answers.refused]
    refused = len(files) - len(answered)
    if not answered:
        return ScoreComparison(num_images=0, difference=0.0, num_changed=0, same_fraction=1.0, num_refused=refused)
    actual = _read_rows(answers.table, [file.name for file in answered], model)
    images = preprocess_decoded([decode_image(file.data, model.spec) for file in answered], model.spec)
    expected = predict_with_model(model, images)
    _check_decisions(actual, model)
    return ScoreComparison(
        num_images=len(answered),
        difference=max_score_difference(get_scores(actual), get_scores(expected), model.task),
        num_changed=int(find_changed_decisions(actual, expected).sum()),
        same_fraction=measure_agreement(actual, expected, model),
        num_refused=refused,
    )


def _read_rows(table: bytes, names: Sequence[str], model: AnsweringModel) -> TaskPredictions:
    """The rows of these files in a page's table, by the reader of `vitrail predict`'s tables."""
    header, *rows = csv.reader(io.StringIO(table.decode("utf-8"), newline=""))
    by_name = {row[0]: row for row in rows}
    if missing := [name for name in names if name not in by_name]:
        raise DamagedFileError(f"The page's table lacks {missing[0]}. Nothing is kept; please report this model.")
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        path = Path(folder) / "table.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *(by_name[name] for name in names)])
        try:
            actual = READERS[model.task](path)
        except DataError as error:
            raise DamagedFileError(f"The page's table is none of a run: {error} Please report this model.") from error
    theirs = actual.columns if isinstance(actual, RegressionPredictions) else actual.classes
    if theirs != model.classes:
        raise DamagedFileError(f"The page answers with {', '.join(theirs)}, the run with {', '.join(model.classes)}.")
    return actual


def _check_decisions(actual: TaskPredictions, model: AnsweringModel) -> None:
    """Check that a page names the model's decision, and decides as the model would from the page's own scores."""
    rules = model.decisions
    agree = actual.decision == rules.version
    if isinstance(actual, MultilabelPredictions):
        agree &= bool((rules.predict_labels(actual.probabilities) == actual.indicators).all())
    elif not isinstance(actual, RegressionPredictions):
        agree &= bool((rules.predict_classes(actual.probabilities, actual.classes) == actual.indices).all())
    if not agree:
        raise DamagedFileError(
            "The page decides otherwise than the run would from the same scores. Nothing is kept; please report this "
            "model."
        )


# -- The browser.


def answer_in_browser(page: Path, files: Mapping[str, bytes]) -> BrowserAnswers:
    """Open a page in headless Chromium without a network, give it files, and save its table.

    Args:
        page: one HTML file, which is opened from disk; or a folder, which is served by this process meanwhile.
        files: at least two, by name.

    Raises:
        DamagedFileError: the page does not start, or asks for an address other than its own.
        ResourceError: Chromium does not start, or stops answering.
    """
    with ThreadPoolExecutor(1) as thread:  # Playwright does not run in a thread with an event loop, as notebooks have
        return thread.submit(_answer_in_browser, page, files).result()


def _answer_in_browser(page: Path, files: Mapping[str, bytes]) -> BrowserAnswers:
    from playwright.sync_api import Error, sync_playwright

    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder, _open_address(page) as address:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        try:
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=_find_chromium(), args=[NO_NETWORK])
                try:
                    tab = browser.new_page()
                    tab.set_default_timeout(1000 * STALL_SECONDS)
                    asked: list[str] = []
                    tab.on("request", lambda request: asked.append(request.url))
                    tab.goto(address)
                    _wait_for_model(tab)
                    began = time.perf_counter()
                    tab.set_input_files("#files", [Path(folder) / name for name in files])
                    _wait_for_answers(tab, len(files))
                    seconds = time.perf_counter() - began
                    refused = _read_refusals(tab)
                    table = b"" if len(refused) == len(files) else _save_table(tab)
                    if foreign := [url for url in asked if not url.startswith((address, "blob:", "data:"))]:
                        raise DamagedFileError(f"The page asks for {foreign[0]}, and must ask for nothing.")
                    return BrowserAnswers(table, refused, f"Chromium {browser.version}", seconds)
                finally:
                    browser.close()
        except Error as error:
            line = str(error).strip().partition("\n")[0]
            raise ResourceError(f"Headless Chromium does not open the page: {line} Nothing is kept.") from error


def _find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


def _wait_for_model(tab: Page) -> None:
    """Wait until the page has read its model."""
    limit = time.monotonic() + STALL_SECONDS
    while not tab.locator("#limits").inner_text():
        if trouble := tab.locator("#trouble").inner_text():
            raise DamagedFileError(f"The page does not start: {trouble}. Nothing is kept; please report this model.")
        _check_time(limit)
        tab.wait_for_timeout(POLL_MILLISECONDS)


def _wait_for_answers(tab: Page, count: int) -> None:
    done, limit = 0, time.monotonic() + STALL_SECONDS
    while done < count:
        now = tab.locator("tr.answered, tr.failed").count()
        if now > done:
            done, limit = now, time.monotonic() + STALL_SECONDS
        _check_time(limit)
        tab.wait_for_timeout(POLL_MILLISECONDS)


def _check_time(limit: float) -> None:
    if time.monotonic() > limit:
        raise ResourceError(f"The page in Chromium has answered nothing for {STALL_SECONDS} s. Nothing is kept.")


def _read_refusals(tab: Page) -> dict[str, str]:
    names, reasons = (tab.locator(f"tr.failed {part}").all_inner_texts() for part in ("button.name", "td:nth-child(2)"))
    return dict(zip(names, reasons, strict=True))


def _save_table(tab: Page) -> bytes:
    with tab.expect_download() as download:
        tab.locator("#save").click()
    return Path(download.value.path()).read_bytes()


@contextmanager
def _open_address(page: Path) -> Iterator[str]:
    """The address of a page: of its file, or of a server on this machine for a folder."""
    if is_single_file(page):
        yield page.resolve().as_uri()
        return
    handler = functools.partial(QuietHandler, directory=str(page))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Log nothing."""
