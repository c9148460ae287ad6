"""The book holds every page, its tables are fresh, its walk-throughs run, no link is lost, and nothing warns."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts import script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PAGE = """<html><body><h1 id="here">A page</h1><a href="#here">up</a> <a href="other.html#there">on</a>
<a href="https://elsewhere.example/">out</a> <img src="drawn.png">{more}</body></html>"""


@pytest.mark.parametrize(("name", "page"), [("table_of_verbs", "verbs.md"), ("table_of_exit_codes", "exit-codes.md")])
def test_the_tables_of_the_reference_are_fresh(name, page):
    assert script(name, "docs").table() in (DOCS / page).read_text(encoding="utf-8"), f"run python docs/{name}.py"


def test_the_table_of_extras_is_fresh_and_names_each_that_a_person_may_want():
    extras = script("table_of_extras", "docs")
    found = json.loads(extras.STORED.read_text(encoding="utf-8"))
    assert extras.table(found) in extras.PAGE.read_text(encoding="utf-8"), "run python docs/table_of_extras.py"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(extras.BRINGS) - {extras.CORE} == set(declared) - {"dev", "docs"}
    assert [row["extra"] for row in found["rows"]] == list(extras.BRINGS)


def test_every_flag_of_every_verb_is_in_the_reference():
    from vitrail.cli.arguments import flag_names
    from vitrail.cli.main import COMMANDS

    sections = re.split(r"^## ", (DOCS / "verbs.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    flags = [set(re.findall(r"^\| `(--[a-z-]+)`", section, re.MULTILINE)) for section in sections]
    told = dict(zip([section.partition("\n")[0] for section in sections], flags, strict=True))
    assert told == {verb: set(flag_names(command)) for verb, command in COMMANDS.items()}


def test_every_page_stands_in_the_book_once():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", index, re.MULTILINE | re.DOTALL)
    entries = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"} | {
        "experiments",
        "changelog",
        "contributing",
        "security",
    }
    found = {page: [entry for entry in entries if fnmatch.fnmatchcase(page, entry)] for page in pages}
    assert not {page: named for page, named in found.items() if len(named) != 1}
    assert not [entry for entry in entries if "*" not in entry and entry not in pages]


def test_there_are_four_walkthroughs_and_they_carry_no_outputs():
    assert [path.name[0] for path in NOTEBOOKS] == list("abcd")
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")], path.name
        assert cells[0]["cell_type"] == "markdown" and cells[0]["source"][0].startswith(f"# {path.name[0].upper()} · ")


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    broken = script("links", "docs").find_broken_links
    (tmp_path / "drawn.png").write_bytes(b"")
    (tmp_path / "other.html").write_text('<p id="there">')
    (tmp_path / "page.html").write_text(PAGE.format(more=""))
    assert broken(tmp_path) == []
    (tmp_path / "page.html").write_text(
        PAGE.format(
            more='<a href="gone.html">a</a><a href="other.html#gone">b</a><script src="https://cdn.example/a.js">'
        )
    )
    assert broken(tmp_path) == [
        "page.html: gone.html does not exist",
        "page.html: other.html#gone names a place that other.html does not have",
        "page.html: https://cdn.example/a.js is fetched from outside the site",
    ]


def test_a_notebook_becomes_a_page_with_its_figures(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# A · Title\n", "See [data](../docs/data.md)."]},
        {
            "cell_type": "code",
            "source": ["1 + 1"],
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["```\n", "said\n"]},
                {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": ["<Figure>"]}},
                {"output_type": "execute_result", "data": {"text/plain": ["2"]}},
            ],
        },
    ]
    path = tmp_path / "a.ipynb"
    path.write_text("{}")
    (tmp_path / "pages").mkdir()
    script("walkthroughs", "docs").write_page({"cells": cells}, path, tmp_path / "pages")
    page = (tmp_path / "pages" / "a.md").read_text(encoding="utf-8")
    assert "See [data](../data.md)." in page and "{download}`a.ipynb`" in page
    assert "````text\n```\nsaid\n````" in page and "```text\n2\n```" in page
    assert "![A · Title: figure 1](a-1.png)" in page and "<Figure>" not in page
    assert (tmp_path / "pages" / "a-1.png").read_bytes() == b"hi"


def test_files_outside_the_pages_are_taken_along(tmp_path):
    text = "[a](../examples/demo.py) [b](../EXPERIMENTS.md) [c](data.md) [d](../gone.txt)"
    found = script("book", "docs").page_with_links(text, tmp_path)
    assert found == "[a](files/examples/demo.py) [b](experiments.md) [c](data.md) [d](../gone.txt)"
    assert (tmp_path / "files" / "examples" / "demo.py").read_bytes() == (ROOT / "examples" / "demo.py").read_bytes()


@pytest.mark.slow
@pytest.mark.needs_book
@pytest.mark.timeout(900)
def test_the_book_builds_with_its_walkthroughs_without_a_warning_and_every_link_leads_somewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_REDUCED", "1")
    words = [sys.executable, str(DOCS / "book.py"), "--out", str(tmp_path / "book")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every link leads somewhere" in done.stdout
    reference = (tmp_path / "book" / "python.html").read_text(encoding="utf-8")
    for name in ("vitrail.create", "vitrail.Run.predict", "vitrail.ViTClassifier.fit", "vitrail.spec.ImageSpec.mean"):
        assert f'id="{name}"' in reference


@pytest.mark.slow
@pytest.mark.needs_book
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_walkthrough_runs_from_its_first_cell_to_its_last(path, tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_REDUCED", "1")
    notebook = script("walkthroughs", "docs").run_notebook(path, ROOT / "build" / "walkthroughs")
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
