"""What a stranger sees first: the logo, the links of the root's pages, the version, what a forge is told to run."""

from __future__ import annotations

import os
import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

import vitrail
from vitrail.cli.arguments import parse_command
from vitrail.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "EXPERIMENTS.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SVG = "{http://www.w3.org/2000/svg}"
GROUNDS = {"white": "#ffffff", "the book by night": "#131416", "a forge by night": "#0d1117"}


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, 0 to 1 (WCAG 2)."""
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Between 1 and 21 (WCAG 2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", ["logo.svg", "mark.svg"])
def test_the_logo_is_drawn_by_lines_alone_and_its_lines_are_seen_on_white_and_by_night(name):
    root = ET.parse(ROOT / "docs" / "images" / name).getroot()
    kinds = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert kinds <= {"svg", "title", "clipPath", "g", "path", "circle"}  # no letters of a font, nothing from elsewhere
    assert root.find(f"{SVG}title").text.startswith("Vitrail")
    lines = {element.get("stroke") for element in root.iter()} - {None}
    lines |= {element.get("fill") for element in root if element.tag == f"{SVG}path"} - {None, "none"}
    assert lines
    for line in lines:
        assert not [ground for ground, colour in GROUNDS.items() if contrast(line, colour) < 3], line


def test_the_mark_of_the_book_and_of_the_served_page_is_one():
    served = ROOT / "src" / "vitrail" / "serve" / "page" / "icon.svg"
    assert served.read_bytes() == (ROOT / "docs" / "images" / "mark.svg").read_bytes()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_beside_the_readme_leads_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [*re.findall(r"\]\(([^)#\s]+)[^)]*\)", text), *re.findall(r'src="([^"]+)"', text)]
    assert not [target for target in targets if "://" not in target and not (ROOT / target).exists()]


def test_every_command_within_a_line_of_the_readme_parses():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"(?<!`)`(?:torchrun --nproc-per-node 8 -m )?vitrail ([^`]+)`(?!`)", text)
    assert len(lines) > 12
    for verb, *rest in map(str.split, lines):
        assert verb in COMMANDS
        if rest:
            parse_command(COMMANDS[verb], rest)


@pytest.mark.parametrize("page", ["SECURITY.md", "CONTRIBUTING.md", "docs/a-layout.md", "docs/reproducing.md"])
def test_every_file_that_a_page_names_is_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:python )?((?:tests|src|benchmarks|docs|examples)/[\w./*-]+)", text))
    assert named and not [name for name in named if "atelier" not in name and not list(ROOT.glob(name))]


def test_every_script_of_benchmarks_has_one_row_on_the_page_that_says_how_to_redo_figures():
    text = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    named = sorted(re.findall(r"`(?:python )?benchmarks/(\w+\.py)", text))
    assert named == sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))


def test_the_version_is_the_same_wherever_it_stands():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"] == vitrail.__version__
    assert f"version = {{{vitrail.__version__}}}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(vitrail.__version__)} ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation["license"] == PROJECT["license"] and citation["title"].startswith("Vitrail")


def test_a_forge_runs_what_continuous_integration_runs_for_every_python_that_is_promised():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    steps = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert steps["everything"][-1] == ".ci/run" and os.access(ROOT / ".ci" / "run", os.X_OK)
    assert steps["elsewhere"] == ["make test test-ci PYTHON=python"]
    matrix = jobs["elsewhere"]["strategy"]["matrix"]
    promised = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert {"3.11", *matrix["python"]} == promised
    assert {*matrix["system"], *(one["system"] for one in matrix["include"])} == {"ubuntu-latest", "macos-latest"}
    assert "train digits --minutes 1" in steps["package"][-1]
