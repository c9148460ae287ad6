"""Whoever watched the streams has gone: `| head` was satisfied, or Ctrl-C ended `| tee` as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_unread(tmp_path: Path, *words: str) -> int:
    """The exit code of a command whose standard error nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "vitrail", *words]
    done = subprocess.run(command, stderr=writer, stdout=subprocess.DEVNULL, cwd=tmp_path, timeout=120, check=False)
    os.close(writer)
    return done.returncode


def test_a_training_goes_on_when_nobody_watches_it(tmp_path):
    assert run_unread(tmp_path, "train", "digits", "--steps", "3", "--out", "run") == 0
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_failure_keeps_its_exit_code_when_nobody_reads_why(tmp_path):
    assert run_unread(tmp_path, "train", "nothing-here") == 3
