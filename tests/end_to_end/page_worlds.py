"""Servers of three tasks for the web page: free pictures, rows as the product's own tables give them, and maps."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from page_server import Recorded, digest
from vitrail.evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
from vitrail.evaluate.tables import PredictionTable

DIGITS = tuple("0123456789")
FINDINGS = ("crack", "inactive, dark", "=scratch", "dust")
THRESHOLDS = {"crack": 0.3, "inactive, dark": 0.55, "=scratch": 0.5, "dust": 0.8}
COLUMNS = ("height (cm)", "weight")
METHODS = [
    {"name": "relevance", "title": "Relevance", "line": "Attention that raises the score.", "of_class": True},
    {"name": "integrated", "title": "Integrated gradients", "line": "What pixels add to it.", "of_class": True},
    {"name": "attention", "title": "Attention", "line": "Where the last block looks.", "of_class": False},
]
SIDE = 8


class World(NamedTuple):
    """A server, and what is true of it."""

    recorded: Recorded
    pictures: Mapping[str, bytes]
    """By name."""
    table: PredictionTable
    """The answers to those that can be read, in order."""


def digits(count: int = 12) -> World:
    """Written digits of scikit-learn, calibrated; the last but one is unsure, the last unlike, if there are three."""
    from sklearn.datasets import load_digits

    given = load_digits()
    pictures = {f"digit-{place:02}.png": grey_png(given.images[place] * 255 / 16) for place in range(count)}
    chances = [0.93 - 0.02 * place for place in range(count)]
    whys = [""] * count
    if count > 2:
        whys[-2:], chances[-2:] = ["unsure", "unlike"], [0.41, 0.88]
    rows = np.stack([spread(int(given.target[k]), chances[k]) for k in range(count)])
    names = tuple(pictures)
    table = ClassificationPredictions(
        paths=names, ids=names, split="", targets=None, classes=DIGITS, probabilities=rows, abstain_reasons=tuple(whys)
    )
    notes = {"unsure": "No class reaches 0.5.", "unlike": "It lies further from the training pictures than 99 in 100."}
    about = {**about_of("classification", DIGITS), "abstains_below": 0.5, "unlike": True}
    return world(about, pictures, table, [[notes[why]] if why else [] for why in whys])


def findings() -> World:
    """Drawn cells with labels of their own thresholds, one cell without any; names that a spreadsheet would run."""
    pictures = {f"cell {k}.png": drawn_cell(k) for k in range(2)}
    rows = np.array([[0.71, 0.56, 0.1, 0.79], [0.2, 0.04, 0.3, 0.1]], np.float32)
    names = tuple(pictures)
    answered = rows >= np.array([THRESHOLDS[name] for name in FINDINGS], np.float32)
    table = MultilabelPredictions(
        paths=names, ids=names, split="", targets=None, classes=FINDINGS, probabilities=rows, predicted=answered
    )
    return world({**about_of("multilabel", FINDINGS), "thresholds": THRESHOLDS}, pictures, table, [[], []])


def measures() -> World:
    """Two numbers of each picture, one with a unit, with ranges."""
    pictures = {f"-{k}.png": drawn_cell(k + 5) for k in range(3)}
    values = np.array([[171.26, 1e-7], [12.5, 65012.0], [-3.0, 0.1]], np.float32)
    names = tuple(pictures)
    ranges = np.stack([values - 1, values + 1], -1)
    table = RegressionPredictions(
        paths=names, ids=names, split="", targets=None, columns=COLUMNS, values=values, ranges=ranges
    )
    return world({**about_of("regression", ()), "columns": list(COLUMNS)}, pictures, table, [[], [], []])


def world(
    about: dict[str, Any], pictures: Mapping[str, bytes], table: PredictionTable, notes: list[list[str]]
) -> World:
    """A server that has recorded a table and draws a map of each picture by each method."""
    recorded = Recorded(about, {})
    for body, row, said in zip(pictures.values(), table.records(), notes, strict=True):
        recorded.rows[digest(body)] = {**row, "notes": said}
        recorded.maps[digest(body)] = maps_of(body, about)
    return World(recorded, pictures, table)


def about_of(task: str, classes: tuple[str, ...]) -> dict[str, Any]:
    """What such a server says of its model."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return {
        "name": "digits" if task == "classification" else f"cells, {task}",
        "task": task,
        "classes": list(classes),
        "columns": [],
        "image": {"height": SIDE, "width": SIDE, "channels": 1},
        "thresholds": {},
        "calibrated": True,
        "abstains_below": None,
        "unlike": False,
        "methods": METHODS,
        "palette": [to_hex(colormaps["inferno"](0.35 + 0.65 * share / 255)) for share in range(256)],
        "limits": {"bytes": 2**20, "pictures": 64, "pixels": 10**8},
        "version": "0.1.0",
        "licence": "Apache-2.0",
    }


def maps_of(body: bytes, about: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """By method and target: light pixels speak for the answer, rows of them for a target, the middle is looked at."""
    seen = np.asarray(Image.open(io.BytesIO(body)).convert("L").resize((SIDE, SIDE)), np.float32) / 255
    y, x = np.mgrid[:SIDE, :SIDE]
    middle = np.exp(-((y - 3.5) ** 2 + (x - 3.5) ** 2) / 6)
    found = {("relevance", ""): seen, ("integrated", ""): seen - seen.mean(), ("attention", ""): middle}
    if about["task"] == "regression":  # of several numbers none is the answer
        found = {("attention", ""): middle}
    for place, name in enumerate(about["classes"] or about["columns"]):
        found |= {(method, name): seen * (y == place % SIDE) for method in ("relevance", "integrated")}
    picture = f"data:image/png;base64,{base64.b64encode(grey_png(seen * 255)).decode()}"
    return {key: _map(key, values, picture) for key, values in found.items()}


def _map(key: tuple[str, str], values: np.ndarray, picture: str) -> dict[str, Any]:
    method, target = key
    return {
        "method": method,
        "title": "Answered: 0" if method == "attention" else f"{target or 'the answer'}, 93.0%",
        "caption": f"{method} · block 3. Where the map is 0 the picture is untouched.",
        "target": None if method == "attention" else target or "the answer",
        "probability": None if method == "attention" else 0.93,
        "scale": "signed" if method == "integrated" else "positive",
        "rows": SIDE,
        "columns": SIDE,
        "values": values.tolist(),
        "low": float(values.min()),
        "high": float(values.max()),
        "height": SIDE,
        "width": SIDE,
        "patch": [1, 1],
        "picture": picture,
        "artefacts": [[0, 7], [5, 1]] if method == "attention" else [],
    }


def spread(label: int, chance: float) -> np.ndarray:
    """Ten probabilities, one of them given, the others halving."""
    others = 0.5 ** np.arange(1, 10)
    row = np.insert(others / others.sum() * (1 - chance), label, chance)
    return (row / row.sum()).astype(np.float32)


def drawn_cell(seed: int) -> bytes:
    """A grey square with bright lines."""
    y, x = np.mgrid[:96, :96]
    return grey_png(90 + 40 * ((x + 7 * seed) % 24 < 2) + 100 * (np.abs(x - y + 9 * seed - 30) < 2))


def flower(kind: str = "JPEG") -> bytes:
    """scikit-learn's photograph of a flower, small."""
    from sklearn.datasets import load_sample_image

    return encoded(Image.fromarray(load_sample_image("flower.jpg")).resize((240, 160)), kind)


def grey_png(values: np.ndarray) -> bytes:
    """0..255 as a grey PNG."""
    return encoded(Image.fromarray(np.asarray(values).round().astype(np.uint8)), "PNG")


def encoded(image: Image.Image, kind: str) -> bytes:
    """The bytes of a file of that kind."""
    data = io.BytesIO()
    image.save(data, kind)
    return data.getvalue()
