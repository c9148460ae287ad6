"""What a reader copies passes strict type checkers: README.md, the pages of docs/, and examples/."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import blocks
from end_to_end.test_blocks import PROLOGUE

pytestmark = pytest.mark.wide
STRICT = "# mypy: disallow-untyped-calls, disallow-subclassing-any, warn-return-any"
"""What [tool.mypy] leaves out of --strict; calls of torch that torch gives no types are not the reader's."""
GIVEN = {
    **PROLOGUE,
    "docs/export.md": "import timm, transformers\nimages = torch.zeros(1, 224, 224, 3, dtype=torch.uint8).numpy()",
}
"""What a page takes for granted; its own types are not checked."""
INSIDE = ("docs/architecture.md",)
"""The inside of a method of the model, which mypy sees where it stands."""
BEGIN = "# what is checked\n"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module for each page with Python blocks, and each script of examples/ whose imports are here."""
    folder = tmp_path_factory.mktemp("pages")

    def write(name: str, text: str, given: str = "") -> None:
        path = folder / f"{re.sub(r'[^a-z0-9]+', '_', name.lower())}.py"
        path.write_text(f"{STRICT}\n{given}\n{BEGIN}{text}", encoding="utf-8")

    found = [block for block in blocks.blocks() if block.kind == "python" and block.page not in INSIDE]
    for page in {block.page for block in found}:
        text = "\n\n".join(block.text for block in found if block.page == page)
        write(page, text, f"import torch, vitrail\n{GIVEN.get(page, '')}")
    for path in (blocks.ROOT / "examples").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if all(map(find_spec, re.findall(r"^(?:import|from) (ray|accelerate)\b", text, re.MULTILINE))):
            write(f"examples/{path.name}", text)
    assert len(list(folder.glob("*.py"))) > 15
    return folder


def is_checked(folder: Path, name: str, line: int) -> bool:
    """Whether a line stands in what a reader copies, and not in what that takes for granted."""
    path = folder / Path(name).name
    return path.is_file() and line > path.read_text(encoding="utf-8").partition(BEGIN)[0].count("\n") + 1


@pytest.mark.timeout(900)
def test_mypy_strict_has_nothing_to_say(pages: Path) -> None:
    files = sorted(map(str, pages.glob("*.py")))
    words = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", "--hide-error-context"]
    words += ["--untyped-calls-exclude", "torch", "--untyped-calls-exclude", "transformers", *files]
    source = os.environ | {"MYPYPATH": "src"}
    done = subprocess.run(words, cwd=blocks.ROOT, env=source, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [re.match(r"(.+?):(\d+): error: ", line) for line in done.stdout.splitlines()]
    wrong = [each.string for each in found if each and is_checked(pages, each[1], int(each[2]))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs_pyright
@pytest.mark.timeout(900)
def test_pyright_has_nothing_to_say(pages: Path) -> None:
    settings = {"include": ["."], "typeCheckingMode": "standard", "extraPaths": [str(blocks.ROOT / "src")]}
    (pages / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    words = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(pages)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] >= len(list(pages.glob("*.py")))
    wrong = [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in found["generalDiagnostics"]
        if each["severity"] == "error" and is_checked(pages, each["file"], each["range"]["start"]["line"] + 1)
    ]
    assert not wrong, "\n".join(wrong)
