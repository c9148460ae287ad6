"""The programs of benchmarks/ and docs/, which are no part of the package, as modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def script(name: str, folder: str = "benchmarks") -> ModuleType:
    """A program by its name, which may import its neighbours as it does when it is run."""
    sys.path.insert(0, str(ROOT / folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / folder))
