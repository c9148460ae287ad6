"""matplotlib as every figure uses it: its own defaults and no window, whatever MPLBACKEND and matplotlibrc say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType

BACKEND_VARIABLE = "MPLBACKEND"


def import_matplotlib() -> ModuleType:
    """matplotlib, imported without the backend of the environment, which may not be installed here.

    Jupyter gives its own backend to child processes, and the import fails where it is missing. Figures are written by
    Agg and open no window, so a usable backend is set only for other code of this process.
    """
    backend = None if "matplotlib" in sys.modules else os.environ.pop(BACKEND_VARIABLE, None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ[BACKEND_VARIABLE] = backend
    if backend:
        with suppress(ValueError):  # not one that this matplotlib knows
            matplotlib.rcParams["backend"] = backend
    return matplotlib


@contextmanager
def default_style() -> Iterator[None]:
    """A context, and a decorator, in which figures are drawn by matplotlib's defaults; the caller's are restored."""
    import_matplotlib()
    from matplotlib import style

    with style.context("default"):
        yield
