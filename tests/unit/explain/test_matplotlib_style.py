"""Figures are the same whatever MPLBACKEND and matplotlibrc say, and the caller's matplotlib is left as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import matplotlib
import numpy as np
import pytest

from vitrail.explain.figures import plot_token_strip, save_png

DRAW = """
import os
from vitrail.explain.matplotlib_style import default_style
with default_style():
    from matplotlib.figure import Figure
    Figure().savefig(os.devnull, format="png")
import matplotlib
print(os.environ["MPLBACKEND"], dict.__getitem__(matplotlib.rcParams, "backend"))
"""


def figure_bytes(path):
    save_png(plot_token_strip(np.arange(72, dtype=np.uint8).reshape(6, 12, 1), (3, 4), 2), path)
    return path.read_bytes()


@pytest.mark.parametrize(
    "settings",
    [{"text.usetex": True}, {"image.origin": "lower"}, {"savefig.bbox": "tight"}, {"font.size": 3, "axes.grid": True}],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_a_matplotlibrc_change_no_figure_and_are_kept_for_the_caller(tmp_path, settings):
    expected = figure_bytes(tmp_path / "plain.png")
    with matplotlib.rc_context(settings):
        assert figure_bytes(tmp_path / "styled.png") == expected
        assert {name: matplotlib.rcParams[name] for name in settings} == settings


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "no-such-backend", "svg"])
def test_a_backend_of_the_environment_that_is_missing_stops_nothing_and_a_usable_one_stays(backend):
    environment = {**os.environ, "MPLBACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", DRAW], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    named, found = done.stdout.split(maxsplit=1)
    assert named == backend
    assert (backend in found) == (backend == "svg" or (find_spec("matplotlib_inline") is not None and ":" in backend))
