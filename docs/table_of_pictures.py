"""Write the table of outcomes into docs/pictures.md: what becomes of each of the 64 kinds of file in tests/corpus.

python docs/table_of_pictures.py
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from markers import fill

from vitrail.data.decoding.decode import convert_image, read_image
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "pictures.md"
if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))

from corpus import places  # noqa: E402 - the tests are no package that is installed
from corpus.all_cases import CASES  # noqa: E402
from corpus.case import Case  # noqa: E402


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "outcomes", table())


def table() -> str:
    """One row a file: kind, what it is, what the decoder did with it just now, what a server has to answer."""
    lines = ["| kind | file | training and check | server |", "|---:|---|---|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        for case in sorted(CASES, key=lambda case: case.number):
            lines.append(f"| {case.number} | {case.what} | {_outcome(case, Path(folder))} | {case.status} |")
        inside = Path(folder) / "places"
        inside.mkdir()
        places.build(inside)
        for name, what in PLACES.items():
            lines.append(f"| 64 | {what} | {_place(inside / name)} | – |")
    return "\n".join(lines)


# fmt: off
PLACES = {
    "pipe.png": "pipe", "socket.png": "socket", "device.png": "device", "folder.png": "folder",
    "dangling.png": "link to nothing", "circle.png": "link to itself", "closed.png": "file that may not be read",
    "linked.png": "link to a picture outside the folder",
}
# fmt: on


def _outcome(case: Case, folder: Path) -> str:
    path = folder / case.name
    path.write_bytes(case.make())
    return _read(path, ImageSpec(low=case.low, high=case.high))


def _place(path: Path) -> str:
    if path.name != "closed.png":
        return _read(path, ImageSpec())
    with places.as_nobody():
        return _read(path, ImageSpec())


def _read(path: Path, spec: ImageSpec) -> str:
    """The picture's size, type and remarks, or the sentence that refuses it."""
    try:
        stored = read_image(path, spec)
        convert_image(stored, spec)
    except DataError as error:
        words = str(error).removeprefix(f"{path}: ").replace(str(path.parent), "FOLDER")
        words = re.sub(r"[\d,]+ bytes", "… bytes", words)  # which depend on the version of the library that wrote them
        return words.partition("; expected ")[0].removesuffix(".").replace("|", "\\|")
    shape = " x ".join(map(str, stored.values.shape))
    remarks = f"; {'; '.join(stored.remarks)}" if stored.remarks else ""
    return f"read: {shape}, {stored.values.dtype}{remarks}"


if __name__ == "__main__":
    main()
