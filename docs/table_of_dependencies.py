"""Write docs/dependencies.md: every direct dependency with licence, release, size and reason, as installed here."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dependencies.md"

WHY = {
    "torch": "tensors, gradients, optimisers (Muon since 2.9), compilation and export",
    "numpy": "pictures before they are tensors, counter-based randomness, stored predictions",
    "pillow": "decodes PNG, JPEG, WebP, TIFF, BMP and GIF; its resize is the reference of ours",
    "simplejpeg": "decodes JPEG with libjpeg-turbo",
    "safetensors": "weights in files that cannot run code",
    "huggingface_hub": "published checkpoints, only when asked for",
    "scikit-learn": "metrics, splits, probes, and the digits of the first example",
    "scipy": "distributions and special functions behind intervals and tests",
    "matplotlib": "figures in reports and explanations",
    "jinja2": "the template of the report page",
    "jaxtyping": "shapes in signatures, checked in the tests",
    "rich": "progress and tables in the terminal",
    "pytest": "runs the tests",
    "pytest-timeout": "ends a test that hangs",
    "pytest-xdist": "runs them in two processes at once",
    "hypothesis": "draws the inputs of property tests",
    "beartype": "checks the shapes in signatures, in tests only",
    "ruff": "one formatter and linter",
    "mypy": "checks types",
    "import-linter": "keeps the floors of the architecture",
    "hatchling": "builds the package; the tests build it too",
    "timm": "oracle: its models and ours must agree on the same weights",
    "transformers": "oracle, as timm",
    "torchvision": "oracle, as timm, and for resizing; never imported by the package",
    "vit-pytorch": "oracle, as timm",
    "open_clip_torch": "oracle, as timm, for CLIP towers",
    "captum": "oracle: integrated gradients and occlusion of explanations",
    "webdataset": "oracle: tar shards must give it and us the same samples",
    "tifffile": "oracle: writes TIFF files of every depth and number of bands for tests",
    "datasets": "reads Hugging Face data sets (extra `data`)",
    "pyarrow": "reads Parquet manifests, writes answers and features (extra `data`)",
    "pandas": "tests of tables that are handed over in memory; the package takes them without importing it",
    "pydicom": "reads DICOM films (extra `medical`)",
    "pylibjpeg": "decoders of compressed DICOM films, its frame (extra `medical`)",
    "pylibjpeg-openjpeg": "the same, for JPEG 2000 (extra `medical`)",
    "pylibjpeg-rle": "the same, for run lengths (extra `medical`)",
    "fastapi": "the server (extra `serve`)",
    "uvicorn": "carries the server (extra `serve`)",
    "httptools": "reads HTTP in C: a fifth more requests than the parser in Python (extra `serve`)",
    "python-multipart": "reads pictures sent as forms (extra `serve`)",
    "prometheus-client": "counts what the server does and writes it for Prometheus (extra `serve`)",
    "httpx2": "asks the server in tests",
    "onnx": "checks exported files, writes hostile ones for tests (extra `export`)",
    "onnxscript": "turns a captured graph into ONNX (extra `export`)",
    "onnxruntime": "answers from ONNX files (extra `export`)",
    "playwright": "drives Debian's Chromium in the tests of pages",
    "tensorboard": "curves of several runs side by side (extra `track`); reads them back in tests",
    "pi-heif": "reads HEIC, the photographs of iPhones, where somebody installs it (libheif, LGPL); no extra names it",
    "optuna": "prunes a search in an example of ours; 19 MiB of SQLAlchemy and others come along",
    "sphinx": "builds the book (extra `docs`)",
    "furo": "its theme, dark and light, without anything from elsewhere (extra `docs`)",
    "myst-parser": "reads our Markdown pages for it (extra `docs`)",
    "sphinx-copybutton": "a button that copies a block (extra `docs`)",
    "nbclient": "runs the walk-throughs of `examples/` (extra `docs`)",
    "ipykernel": "the kernel that they run in (extra `docs`)",
}

HEAD = """# Dependencies

Every direct dependency of the core, of development and of the book, as installed from `constraints.txt`. Sizes are
those of the installed files, in MiB, without what a package itself depends on; torch is the build for processors
without GPU libraries where the release says `+cpu`. Extras (`pip install vitrail[serve]` and so on) are listed in
`pyproject.toml`; none of them is needed by the core, and [installing](installing.md) has what each brings along.

`make docs` writes this page; `tests/test_house.py` keeps the list frozen.
"""

LEFT_OUT = """
## In an extra of their own

- **openvino** (extra `openvino`, Apache-2.0, 2026.4.1, 180 MiB, numpy and openvino-telemetry come along): answers from
  int8 files faster than ONNX Runtime, and `benchmarks/exporting.py` says by how much. Twice the size of everything that
  the extra `export` brings, so nobody gets it unasked, and development does without: continuous integration installs
  it. Nothing of ours calls its converter, the part that reports its use by openvino-telemetry.

## Considered and left out

- **mlflow** for `vitrail export --to mlflow`: what MLflow reads is a folder with one file in YAML, which is written
  without it. mlflow-skinny 3.17.2 (Apache-2.0, 40 MiB, 25 packages come along, a databricks-sdk of 16 MiB among them)
  opens such folders in a test; its own functions that save models report their use to a server.
- **tyro** for the command line: with `train`'s flags its help took 0.21 to 0.34 s of CPU (median 0.24 to 0.29) where
  0.3 is the limit, and its messages are boxes where ours are sentences. `cli/arguments.py` reads flags with our own
  strict settings reader instead: 0.16 s. Measured on 2026-11-21, Python 3.11, two Zen 3 cores.
- **tifffile** at run time: without imagecodecs (89 MiB) it reads no LZW, JPEG, fax or floats stored as differences, and
  its import takes 0.13 s. Pillow's libtiff, which is here anyway, unpacks all of these as bytes, and numpy makes
  numbers of them: 14,652 files that tifffile wrote (11 types, 1 to 5 bands, 6 compressions, predictors, byte orders,
  strips, tiles, planes) came out equal. Measured on 2026-11-27, Python 3.11.
- **pyright** for everybody who develops: `basedpyright`, which brings its own Node.js, is 284 MiB. Continuous
  integration installs it and checks the code that readers copy with it and with mypy (`tests/test_types.py`).
- **torchvision** at run time: its registry wheel is built for CUDA and fails to import beside a CPU-only torch.
"""


def main() -> None:
    """Write the page from the metadata of the packages installed beside this Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core, extras = project["dependencies"], project["optional-dependencies"]
    pages = [HEAD, "## Core\n", table(core), "\n## Development\n", table(extras["dev"])]
    pages += ["\n## The book\n", table(extras["docs"]), "", transitive(core), LEFT_OUT]
    PAGE.write_text("\n".join(pages), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


def table(requirements: list[str]) -> str:
    """One row a package, in the order of pyproject.toml, and the sum of their sizes."""
    found = [distribution(_name(text)) for text in requirements]
    rows = [
        f"| {_name(text)} | {licence(one)} | {one.version} | {size(one) / 2**20:.1f} | {WHY[_name(text)]} |"
        for text, one in zip(requirements, found, strict=True)
    ]
    total = f"| {len(rows)} packages | | | {sum(map(size, found)) / 2**20:.1f} | |"
    return "\n".join(["| package | licence | release | MiB | why |", "|---|---|---|---:|---|", *rows, total])


def transitive(requirements: list[str]) -> str:
    """How much comes along: all packages that the core needs, directly or not."""
    seen: dict[str, int] = {}
    waiting = [_name(text) for text in requirements]
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        one = installed_size(name)
        if one is None:  # asked for on other systems only
            continue
        seen[name] = size(one)
        waiting += [_name(text) for text in one.requires or [] if "extra ==" not in text]
    mebibytes = sum(seen.values()) / 2**20
    return f"With everything that these need in turn, the core is {len(seen)} packages, {mebibytes:.0f} MiB.\n"


def licence(one: Distribution) -> str:
    """The licence as the package's metadata says it, on one short line."""
    classifiers = [text for text in one.metadata.get_all("Classifier") or [] if text.startswith("License :: OSI")]
    named = "; ".join(text.rpartition(" :: ")[2] for text in classifiers)
    said = one.metadata.get("License-Expression") or named or one.metadata.get("License") or "not said"
    first, *others = said.strip().splitlines()[0].split(" AND ")
    return f"{first} and, for parts, {len(others)} others" if len(others) > 2 else " and ".join([first, *others])


def size(one: Distribution) -> int:
    """Bytes of all installed files, compiled caches left out."""
    paths = (Path(str(one.locate_file(file))) for file in one.files or [] if "__pycache__" not in str(file))
    return sum(path.stat().st_size for path in paths if path.is_file())


def installed_size(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except ModuleNotFoundError:  # PackageNotFoundError is one
        return None


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~ \[;(]", requirement.strip())[0]


if __name__ == "__main__":
    main()
