"""Ten drawn pictures, a run trained on them, a way to type commands, and a browser before a server of digits."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from shared_once import shared_once

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from end_to_end.page_hands import Hands
    from end_to_end.page_worlds import World

TINY = (
    "--model",
    "vit_mu_patch8_16",
    "--recipe.batch_size",
    "4",
    "--data.val_fraction",
    "0.2",
    "--compute.threads",
    "1",
)
"""A model of 13 thousand parameters that reads 16 x 16 pixels as four patches."""


class Answer(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


class Typist:
    """Runs commands in this process and keeps what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self.capsys = capsys

    def __call__(self, *words: object) -> Answer:
        from vitrail.cli.main import main

        self.capsys.readouterr()
        code = main([str(word) for word in words])
        answer = Answer(code, *self.capsys.readouterr())
        print(answer.err, end="", file=sys.stderr)  # for pytest to show where a test fails
        return answer


@pytest.fixture
def vitrail(capsys: pytest.CaptureFixture[str], threads_kept: None) -> Typist:
    """`vitrail("train", ...)` as a person would type it."""
    return Typist(capsys)


@pytest.fixture
def threads_kept() -> Iterator[None]:
    """Commands set the number of threads; the next test has its own back."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def flowers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten drawn pictures of two kinds, 20 pixels high and 24 wide: discs and stripes."""
    return shared_once("flowers", draw_flowers, tmp_path_factory)


def draw_flowers(folder: Path) -> None:
    from PIL import Image

    y, x = np.mgrid[:20, :24]
    for k in range(5):
        disc = ((y - 6 - k) ** 2 + (x - 12) ** 2 < 25) * 200 + 20
        stripes = ((x + k) // 3 % 2) * 160 + 40
        for kind, grey in (("disc", disc), ("stripes", stripes)):
            (folder / kind).mkdir(exist_ok=True)
            colours = np.stack([grey, 255 - grey, np.full_like(grey, 25 * k)], -1).astype(np.uint8)
            Image.fromarray(colours).save(folder / kind / f"{k}.png")


@pytest.fixture(scope="session")
def run_folder(flowers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of eight steps; each worker has a copy of its own, for tests write reports into it."""
    import torch

    from vitrail.cli.main import main

    def train(folder: Path) -> None:
        assert main(["train", str(flowers), *TINY, "--steps", "8", "--out", str(folder / "flowers")]) == 0

    before = torch.get_num_threads()
    finished = shared_once("finished", train, tmp_path_factory)
    torch.set_num_threads(before)
    return shutil.copytree(finished / "flowers", tmp_path_factory.mktemp("runs") / "flowers")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    from end_to_end.page_hands import chromium

    with chromium() as found:
        yield found


@pytest.fixture
def served() -> Iterator[World]:
    """Digits behind a running server."""
    from end_to_end.page_worlds import digits
    from page_server import serving

    world = digits()
    with serving(world.recorded):
        yield world


@pytest.fixture
def hands(browser: Browser, served: World) -> Iterator[Hands]:
    """The page of that server, open and empty."""
    from end_to_end.page_hands import visiting

    with visiting(browser, served.recorded.url) as found:
        yield found
