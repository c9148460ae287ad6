"""Run the notebooks of examples/, once for each state of notebook and package, and write them as pages of the book."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SECONDS = 1500
"""After so long a cell is given up."""
NAMED = ("VITRAIL_REDUCED", "VITRAIL_DINOV2", "VITRAIL_ELPV", "VITRAIL_CHESTXRAY14")
"""Variables of the environment that change what a walk-through does."""

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """A notebook as it lies in the repository, without outputs."""
    found: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return found


def run_notebook(path: Path, kept: Path) -> Notebook:
    """The notebook with its outputs; run in an empty folder unless the same was run before and is kept in `kept`.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised; the message shows it.
    """
    state = state_of(path)
    place = kept / f"{path.stem}-{state}.ipynb"
    if not place.is_file():
        kept.mkdir(parents=True, exist_ok=True)
        for old in kept.glob(f"{path.stem}-*.ipynb"):
            old.unlink()
        began = time.monotonic()
        place.write_text(json.dumps(run(path)), encoding="utf-8")
        print(f"{path.name}: run in {time.monotonic() - began:.0f} s", flush=True)
    return read(place)


def state_of(path: Path) -> str:
    """What the outputs depend on, as a short hash: the notebook, the package, and the variables that name data."""
    found = hashlib.sha256(path.read_bytes())
    for source in sorted((ROOT / "src" / "vitrail").rglob("*.py")):
        found.update(source.read_bytes())
    found.update(json.dumps([os.environ.get(name, "") for name in NAMED]).encode())
    return found.hexdigest()[:12]


def run(path: Path) -> Notebook:
    """Every cell, from the first to the last, in a kernel and an empty folder of its own."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as sockets:
        client = nbclient.NotebookClient(
            notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        manager = client.create_kernel_manager()
        manager.connection_file = str(Path(sockets) / "kernel.json")
        manager.transport = "ipc"  # a port that is free now may be taken when the kernel asks for it
        client.execute()
    return dict(notebook)


def write_page(notebook: Notebook, path: Path, folder: Path) -> None:
    """The notebook as a Markdown page, its figures as files beside it, and itself to take along."""
    shutil.copy2(path, folder)
    (folder / f"{path.stem}.md").write_text("\n\n".join(parts(notebook, path.stem, folder)) + "\n", encoding="utf-8")


def parts(notebook: Notebook, stem: str, folder: Path) -> Iterator[str]:
    """The cells in order; the way to the notebook stands after the first."""
    heading, figures = stem, 0
    for place, cell in enumerate(notebook["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield text.replace("](../docs/", "](../")  # where the page lies in the book
            titles = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
            heading = titles[-1] if titles else heading
            if place == 0:
                yield f"This page is a notebook that was run as it stands: {{download}}`{stem}.ipynb`."
            continue
        yield fence_block(text, "python")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                figures += 1
                name = f"{stem}-{figures}.png"
                (folder / name).write_bytes(base64.b64decode("".join(data["image/png"])))
                yield f"![{heading}: figure {figures}]({name})"
            elif said := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                yield fence_block(said, "text")


def fence_block(text: str, language: str) -> str:
    """A block that holds any text."""
    fence = "`" * max(3, 1 + max((len(line) - len(line.lstrip("`")) for line in text.splitlines()), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
