"""Runs whose dossiers are looked at, and what holds of every dossier."""

from __future__ import annotations

import html as html_text
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

import vitrail
from quick_fits import QUICK, digits
from unit.report.test_accessible import Outline
from unit.report.test_first_pages import whole
from vitrail import config
from vitrail.cli.arguments import parse_command
from vitrail.cli.main import COMMANDS
from vitrail.report.checklists import CHECKLISTS
from vitrail.report.dossier import build_dossier
from vitrail.services.evaluation import evaluate_stored_subgroups
from vitrail.train.plan import Plan

IMAGES, LABELS = digits(180)
NAMES = np.array(["even", "odd"])[LABELS % 2]
CAMERAS = np.array(["left", "right"])[(np.arange(len(LABELS)) * 7 // 3) % 2]


def train(folder: Path, columns: Mapping[str, Sequence[str]], **words) -> Path:
    """A run on a manifest, whose pictures are grouped by part."""
    rows = [f"{k}.png,{','.join(row)}" for k, row in enumerate(zip(*columns.values(), strict=True))]
    for k, image in enumerate(IMAGES):
        Image.fromarray(image).save(folder / f"{k}.png")
    (folder / "cells.csv").write_text("\n".join([",".join(["path", *columns]), *rows]) + "\n")
    words |= {**QUICK, "settings": {**QUICK["settings"], "data.targets": "verdict", "data.test_fraction": 0.4}}
    return vitrail.fit(folder / "cells.csv", group="part", out=folder / "run", quiet=True, **words).path


def make_dossier(run: Path) -> str:
    return build_dossier(run, evaluate_stored_subgroups(run)).page.read_text(encoding="utf-8")


def check_page(html: str) -> None:
    """Whole, without a dead or double anchor, and every item of every checklist with a place that is there."""
    whole(html)
    seen = Outline()
    seen.feed(html)
    assert seen.silent == [] and len(seen.ids) == len(set(seen.ids)) and seen.levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(seen.levels, seen.levels[1:], strict=False))
    assert {one.removeprefix("#") for one in seen.targets} <= set(seen.ids)
    tables = html[html.index('<h2 id="items">') :].split("<h3>")[1:]
    for table, (name, items) in zip(tables, CHECKLISTS.items(), strict=True):
        rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>(.*)</tr>', table)
        assert table.startswith(name) and [row[:2] for row in rows] == [(item.number, item.topic) for item in items]
        assert all('href="#' in where for _, _, where in rows)
    numbers = re.findall(r'<h2 id="[\w-]+"><span class="number">(\d+)</span>', html)
    assert numbers == [str(k) for k in range(1, len(numbers) + 1)] and html.count("<code>vitrail") >= len(numbers)


def check_commands(html: str, run: Path) -> None:
    """Every printed command is one of a shell, with verbs and flags of the command line and files that are there."""
    texts = [text for _, text in re.findall(r"<(code|pre)[^>]*>(.*?)</\1>", html, re.DOTALL)]
    texts += re.findall(r": (vitrail [^<]*?)\.(?=[\s<])", re.sub(r"</?(span|code).*?>", "", html))
    texts = [html_text.unescape(re.sub(r"<.*?>", "", text)) for text in texts]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("vitrail ")]
    source = Path(tomllib.loads((run / "plan.toml").read_text())["data"]["source"])
    picture = next(iter(source.parent.rglob("*.png")))
    stand = {"SOURCE": source, "MANIFEST": source, "PICTURE": picture, "PICTURES": picture.parent, "DATE": "2026-11-01"}
    assert len(lines) > 20
    for line in lines:
        verb, *words = shlex.split(line)[1:]
        words = [str(stand.get(word, re.sub(r"^RUN\b", str(run), word))) for word in words]
        parsed = parse_command(COMMANDS[verb], words)
        assert isinstance(parsed, COMMANDS[verb]) and "\u2026" not in line
        for word in words:
            written = word.endswith("suspects.csv")
            assert "/" not in word or written or Path(word).exists(), line
        if verb == "evaluate":
            parsed._check_flags()
        if verb == "train" and parsed.plan is not None:
            config.read_toml(parsed.plan, Plan)
