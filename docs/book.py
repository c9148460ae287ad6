"""Build the book into build/book: pages, docstrings and walk-throughs; warnings and lost links are errors.

python docs/book.py                    # `make book`: the walk-throughs are run, which takes up to half an hour
VITRAIL_REDUCED=1 python docs/book.py  # the same with trainings of seconds
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import links
import walkthroughs

DOCS = Path(__file__).parent
ROOT = DOCS.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
BESIDE = ("CHANGELOG.md", "EXPERIMENTS.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the repository's root that are part of the book, under their names in small letters."""


def main() -> int:
    """Gather the pages, let Sphinx build them, and follow every link."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "book")
    options = parser.parse_args()
    from sphinx.cmd.build import main as sphinx

    pages = options.out.with_name(f"{options.out.name}-pages")
    gather(pages)
    words = ["--quiet", "--fail-on-warning", "--keep-going", "-b", "html", "-c", str(DOCS)]
    if code := sphinx([*words, "-d", f"{options.out}-memory", str(pages), str(options.out)]):
        return int(code)
    wrong = links.find_broken_links(options.out)
    print("\n".join(wrong) if wrong else f"{options.out / 'index.html'}: every link leads somewhere.")
    return 1 if wrong else 0


def gather(pages: Path) -> None:
    """Every page of the book in one folder, as Sphinx wants them."""
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    for path in DOCS.glob("*.md"):
        (pages / path.name).write_text(page_with_links(path.read_text(encoding="utf-8"), pages), encoding="utf-8")
    for name in BESIDE:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        (pages / name.lower()).write_text(text, encoding="utf-8")
    shutil.copytree(DOCS / "images", pages / "images")
    (pages / "walkthroughs").mkdir()
    for path in NOTEBOOKS:
        notebook = walkthroughs.run_notebook(path, ROOT / "build" / "walkthroughs")
        walkthroughs.write_page(notebook, path, pages / "walkthroughs")
    index = pages / "index.md"
    index.write_text("".join(existing_lines(index.read_text(encoding="utf-8"), pages)), encoding="utf-8")


def page_with_links(text: str, pages: Path) -> str:
    """A page whose links to files outside docs/ lead into the book: those files are taken along."""

    def bring(link: re.Match[str]) -> str:
        path = ROOT / link[1]
        if path.name in BESIDE:
            return f"]({path.name.lower()})"
        if not path.is_file():
            return link[0]  # Sphinx will say where it stands
        place = pages / "files" / link[1]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)
        return f"](files/{link[1]})"

    return re.sub(r"\]\(\.\./([^)#]+)\)", bring, text)


def existing_lines(index: str, pages: Path) -> Iterator[str]:
    """The lines of the index, without patterns such as scale* that no page matches; Sphinx would warn of them."""
    for line in index.splitlines(keepends=True):
        pattern = line.strip()
        if not pattern.endswith("*") or any(pages.glob(f"{pattern}.md")):
            yield line


if __name__ == "__main__":
    sys.exit(main())
