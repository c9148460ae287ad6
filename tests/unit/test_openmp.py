"""OpenMP's threads sleep soon, unless somebody else has decided."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vitrail import openmp


@pytest.mark.parametrize(
    ("begin", "environment", "turns"),
    [
        ("import vitrail", {}, "5000"),
        ("import vitrail", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("import vitrail", {"OMP_WAIT_POLICY": "active"}, None),
        ("import torch, vitrail", {}, None),
    ],
)
def test_importing_vitrail_decides_it_before_torch_and_for_nobody_who_has_decided(begin, environment, turns):
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in (openmp.SPIN_COUNT_VARIABLE, openmp.WAIT_POLICY_VARIABLE)
    }
    script = f"{begin}, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run([sys.executable, "-c", script], env=clean | environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(turns if sys.platform == "linux" else environment.get("GOMP_SPINCOUNT"))


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP is Linux's")
@pytest.mark.parametrize(
    ("turns", "policy", "briefly"),
    [("1000", "", True), ("300000", "", False), ("", "passive", True), ("", "active", False), ("", "", False),
     ("infinity", "passive", False)],
)  # fmt: skip
def test_what_the_environment_says_is_known(turns, policy, briefly, monkeypatch):
    monkeypatch.setenv(openmp.SPIN_COUNT_VARIABLE, turns)
    monkeypatch.setenv(openmp.WAIT_POLICY_VARIABLE, policy)
    assert openmp.has_short_spin() == briefly
