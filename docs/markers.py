"""Replace what stands between two markers of a page: what every generated table of the documentation needs."""

from __future__ import annotations

from pathlib import Path


def fill(page: Path, name: str, content: str) -> None:
    """Put `content` between `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, opened, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise SystemExit(f"{page} must hold the lines {begin} and {end}. Put them where the table belongs.")
    page.write_text(f"{before}{begin}\n{content}\n{end}{after}", encoding="utf-8")
    print(f"wrote the {name} into {page.name}")
