"""The wheel holds the package and nothing else; the source archive holds what it takes to build, test and read it."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import vitrail

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = f"vitrail-{vitrail.__version__}"
pytestmark = pytest.mark.needs_hatchling


def built(folder: Path, root: Path, *targets: str) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "-d", folder, *(f"-t{target}" for target in targets)]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    built(folder, ROOT, "wheel", "sdist")
    return folder


@pytest.fixture(scope="module")
def wheel(folder: Path) -> zipfile.ZipFile:
    (path,) = folder.glob("*.whl")
    assert path.name == f"{NAME}-py3-none-any.whl"
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def archive(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, unpacked."""
    place = tmp_path_factory.mktemp("sources")
    with tarfile.open(folder / f"{NAME}.tar.gz") as file:
        file.extractall(place, filter="data")
    return place / NAME


def of_package() -> set[str]:
    """Every file of the package, as the wheel names it."""
    source = ROOT / "src"
    files = (path for path in (source / "vitrail").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(source).as_posix() for path in files}


def test_the_wheel_holds_every_file_of_the_package_and_what_pip_needs_and_nothing_else(wheel):
    names = set(wheel.namelist())
    beside = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert names == of_package() | {f"{NAME}.dist-info/{name}" for name in beside}
    wanted = ("py.typed", "report/template.html.j2", "serve/page/index.html", "checkpoints/cards/dinov2.toml")
    assert {f"vitrail/{name}" for name in wanted} <= names
    assert not [name for name in names if "test" in name or name.endswith((".pyc", ".ipynb"))]
    assert sum(info.compress_size for info in wheel.infolist()) < 2 * 2**20


def test_the_wheel_says_what_pyproject_says(wheel):
    told = email.message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))
    assert (told["Name"], told["Version"]) == ("vitrail", PROJECT["version"]) == ("vitrail", vitrail.__version__)
    assert told["Requires-Python"] == ">=3.11" and told["License-Expression"] == "Apache-2.0"
    assert set(told.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    core = {need for need in told.get_all("Requires-Dist") if "extra ==" not in need}
    assert core == {re.sub(r"_", "-", need) for need in PROJECT["dependencies"]}
    assert told.get_payload().startswith("<img") and "# Vitrail" in told.get_payload()
    assert b"vitrail = vitrail.cli.main:main" in wheel.read(f"{NAME}.dist-info/entry_points.txt")


def test_the_source_archive_builds_the_same_wheel_and_holds_tests_and_pages(archive, wheel, tmp_path):
    for name in ("LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "Makefile", "constraints.txt"):
        assert (archive / name).read_bytes() == (ROOT / name).read_bytes()
    for name in ("docs/installing.md", "docs/images/logo.svg", "tests/test_package.py", "examples/demo.py"):
        assert (archive / name).is_file()
    left = {".git", ".venv", "__pycache__", ".hypothesis", "runs", "build", "dist"}
    assert not [path for path in archive.rglob("*") if left & set(path.relative_to(archive).parts)]
    built(tmp_path, archive, "wheel")
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as again:
        assert {info.filename: info.CRC for info in again.infolist() if "RECORD" not in info.filename} == {
            info.filename: info.CRC for info in wheel.infolist() if "RECORD" not in info.filename
        }
