"""The decoder and the resize of the exported page, run in Chromium, beside those of the product: pixel by pixel."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Page

from corpus.all_cases import CASES
from drawn_files import drawn_arrays, drawn_photographs, drawn_pngs
from end_to_end.page_hands import chromium
from exportable import member
from vitrail.data.decoding.decode import decode_image
from vitrail.data.preprocess_numpy import fit_array
from vitrail.errors import DataError
from vitrail.export.browser_page import BROWSER_FOLDER, describe_for_page
from vitrail.export.browser_proof import _open_address
from vitrail.spec import ImageSpec

pytestmark = pytest.mark.needs_chromium

SPECS = (
    ImageSpec(height=28, width=28, channels=1),
    ImageSpec(height=32, width=24, fit="crop", crop_fraction=0.875),
    ImageSpec(height=21, width=21, fit="crop", crop_fraction=0.875),
    ImageSpec(height=21, width=21, fit="crop", crop_fraction=0.8, crop_start="even"),
    ImageSpec(height=24, width=40, fit="pad", interpolation="bilinear"),
    ImageSpec(height=20, width=20, antialias=False),
    ImageSpec(height=20, width=20, channels=1, antialias=False, interpolation="bilinear", low=10, high=220),
    ImageSpec(height=16, width=30, channels=1, high=65535, bit_depth=16),
    ImageSpec(height=30, width=16, high=65535),
    ImageSpec(height=30, width=16, low=3.5, high=4095),
)
PREPARE = """async ([files, specs]) => {
    const { prepare } = await import("/decode.js");
    const made = [];
    for (const [text, which] of files) {
        const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
        try {
            const { values } = (await prepare(new Blob([bytes]), specs[which])).picture;
            const raw = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
            made.push(btoa(Array.from(raw, byte => String.fromCharCode(byte)).join("")));
        } catch (problem) {
            made.push([problem.message, problem.status ?? 0]);
        }
    }
    return made;
}"""


@pytest.fixture(scope="module")
def modules() -> Iterator[Page]:
    """A tab that can import the page's modules."""
    with chromium() as browser, _open_address(BROWSER_FOLDER) as address:
        page = browser.new_page()
        page.goto(address)
        yield page


def described(spec: ImageSpec) -> dict[str, object]:
    return describe_for_page(dataclasses.replace(member(), spec=spec), "", "")["spec"]


def prepared(page: Page, files: list[tuple[bytes, int]], specs=SPECS) -> list[np.ndarray | list[object]]:
    """What the page's modules make of files, each for the spec of that number: pixels, or a sentence and its status."""
    sent = [[base64.b64encode(data).decode(), which] for data, which in files]
    made = page.evaluate(PREPARE, [sent, [described(spec) for spec in specs]])
    return [
        one if isinstance(one, list) else np.frombuffer(base64.b64decode(one), specs[which].dtype)
        for one, (_, which) in zip(made, files, strict=True)
    ]


def expected(data: bytes, spec: ImageSpec) -> np.ndarray | str:
    try:
        return fit_array(decode_image(data, spec), spec).ravel()
    except DataError as problem:
        return str(problem)


def differences(page: Page, files: list[tuple[bytes, int]]) -> list[int]:
    """The largest difference of two levels of each file; both refuse the others."""
    found = []
    for (data, which), ours in zip(files, prepared(page, files), strict=True):
        truth = expected(data, SPECS[which])
        if isinstance(truth, str):
            assert isinstance(ours, list) and ours[1] in (413, 415, 422), (truth, ours)
        else:
            assert not isinstance(ours, list), ours
            found.append(int(np.abs(ours.astype(np.int64) - truth).max()))
    return found


@pytest.mark.parametrize("count", [105, pytest.param(400, marks=pytest.mark.wide)])
def test_png_and_npy_files_give_the_same_pixels(count, modules):
    files = [data for _, data in (*drawn_pngs(count * 7 // 10), *drawn_arrays(count * 3 // 10))]
    found = differences(modules, [(data, (place + place // 8) % len(SPECS)) for place, data in enumerate(files)])
    assert len(found) > count / 2 and max(found) == 0


@pytest.mark.parametrize(("kind", "most"), [("JPEG", 0), ("BMP", 0), ("GIF", 0), ("WEBP", 1)])
def test_what_chromium_decodes_lies_within_so_many_levels(kind, most, modules):
    files = [data for _, data in drawn_photographs(16, kind)]
    found = differences(modules, [(data, place % 4) for place, data in enumerate(files)])
    assert len(found) == 16 and max(found) <= most


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"", 415, "not a picture this page reads; expected JPEG, PNG, WebP, BMP, GIF or NPY files."),
        (b"II*\0" + bytes(40), 415, "This page does not read TIFF files; `vitrail predict` does. Save it as PNG."),
        (b"\xff\xd8\xff" + bytes(40), 422, "damaged JPEG file (this browser cannot decode it)."),
        (b"\x93NUMPY\x01\0", 422, "truncated (NPY file, 8 bytes)."),
    ],
)
def test_what_is_no_picture_is_refused_in_a_sentence(data, status, said, modules):
    assert prepared(modules, [(data, 0)]) == [[said, status]]


def test_damaged_png_files_are_refused_as_the_product_does(modules):
    rng = np.random.default_rng(3)
    files = []
    for _, data in drawn_pngs(40, seed=4):
        cut = bytearray(data)
        for _ in range(3):
            cut[int(rng.integers(8, len(cut)))] ^= 1 << int(rng.integers(0, 8))
        files += [data[: int(rng.integers(10, len(data)))], bytes(cut)]
    truths = [expected(data, SPECS[0]) for data in files]
    for truth, ours in zip(truths, prepared(modules, [(data, 0) for data in files]), strict=True):
        assert isinstance(ours, list) == isinstance(truth, str), (truth, ours)
        if not isinstance(truth, str):
            assert np.array_equal(ours, truth)


OTHER_FORMATS = (".tif", ".heic", ".avif")
"""Endings of files of the corpus that the page refuses with 415, whatever the server says."""
OTHERWISE = {
    "no-eoi.jpg": "refused",  # browsers take no JPEG without its end
    "grows.gif": "read",  # its first frame, which is all that they decode
    "cmyk.jpg": "refused",  # which browsers invert and others do not
}
INKS = {"adobe.jpg": 2, "ycck.jpg": 2}
"""Grey levels by which Chromium turns CMYK into colours otherwise."""


@pytest.mark.wide
def test_odd_files_are_answered_or_refused_as_the_server_does_but_for_what_is_listed(modules):
    files = [(case, case.make()) for case in CASES if not case.heavy]
    specs = tuple(ImageSpec(height=32, width=32, low=case.low, high=case.high) for case, _ in files)
    made = prepared(modules, [(data, place) for place, (_, data) in enumerate(files)], specs)
    compared = 0
    for (case, data), spec, ours in zip(files, specs, made, strict=True):
        truth = expected(data, spec)
        if isinstance(ours, list):
            same = isinstance(truth, str) and ours[1] == case.status
            assert same or (case.name.endswith(OTHER_FORMATS) and ours[1] == 415) or OTHERWISE[case.name] == "refused"
        elif isinstance(truth, str):
            assert OTHERWISE[case.name] == "read"
        else:
            assert int(np.abs(ours.astype(np.int64) - truth).max()) <= INKS.get(case.name, 0), case
            compared += 1
    assert len(files) > 80 and compared > 40
