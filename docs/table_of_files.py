"""Write the table of the package's files, with lines and purpose, into docs/architecture.md between its two markers."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- table of files: begin -->", "<!-- table of files: end -->"


def main() -> None:
    """Replace what stands between the markers."""
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE} must hold the lines {BEGIN} and {END}. Put them where the table belongs.")
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")
    print(f"wrote the table of files into {PAGE.relative_to(ROOT)}")


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
