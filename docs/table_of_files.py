"""Write the table of the package's files, with lines and purpose, into docs/files.md between its two markers."""

from __future__ import annotations

import ast
from pathlib import Path

from markers import fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "files.md"


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "table of files", table())


def table() -> str:
    """One row a file, in the order of folders and names; the purpose is the first sentence of its docstring."""
    package = ROOT / "src" / "vitrail"
    rows = [(path.relative_to(package).as_posix(), path.read_text(encoding="utf-8")) for path in package.rglob("*.py")]
    lines = [f"| `{name}` | {text.count(chr(10))} | {purpose(text)} |" for name, text in sorted(rows, key=_by_folder)]
    total = sum(text.count("\n") for _, text in rows)
    return "\n".join(["| file | lines | purpose |", "|---|---:|---|", *lines, f"| {len(rows)} files | {total} | |"])


def purpose(text: str) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].replace("|", "\\|")


def _by_folder(row: tuple[str, str]) -> tuple[str, str]:
    folder, _, name = row[0].rpartition("/")
    return folder, name


if __name__ == "__main__":
    main()
