"""Write the table of data settings, from the settings themselves, into docs/data.md between its two markers."""

from __future__ import annotations

from pathlib import Path

from markers import fill

from vitrail.config.schema import Field, describe
from vitrail.data.settings import DataSettings

PAGE = Path(__file__).parents[1] / "docs" / "data.md"


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "data settings", table())


def table() -> str:
    """One row a setting, in the order of the class; SOURCE itself is no setting that anybody types."""
    rows = [_row(field) for field in describe(DataSettings) if field.name != "source"]
    return "\n".join(["| setting | takes | default | meaning |", "|---|---|---|---|", *rows])


def _row(field: Field) -> str:
    cells = (f"`--data.{field.name}`", field.type, format_default(field.default), field.doc)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def format_default(default: object) -> str:
    """An empty default is told by the meaning."""
    return "" if default in ("", ()) else f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    main()
