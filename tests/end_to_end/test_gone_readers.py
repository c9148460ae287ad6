"""Whoever watched the streams has gone: `| head` was satisfied, Ctrl-C ended `| tee` as well, or the disk is full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from end_to_end.conftest import TINY


def training(flowers: Path) -> list[str]:
    """A training of a moment: ten pictures, three steps."""
    return ["train", str(flowers), *TINY, "--steps", "3", "--out", "run"]


def run_unread(tmp_path: Path, *words: str) -> int:
    """The exit code of a command whose standard error nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "vitrail", *words]
    done = subprocess.run(command, stderr=writer, stdout=subprocess.DEVNULL, cwd=tmp_path, timeout=120, check=False)
    os.close(writer)
    return done.returncode


@pytest.mark.wide
def test_a_training_goes_on_when_nobody_watches_it(flowers, tmp_path):
    assert run_unread(tmp_path, *training(flowers)) == 0
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_failure_keeps_its_exit_code_when_nobody_reads_why(tmp_path):
    assert run_unread(tmp_path, "train", "nothing-here") == 3


@pytest.mark.wide
@pytest.mark.skipif(os.name == "nt", reason="closed and full streams as a Unix shell makes them")
@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-", "2>&- >&-"])
def test_streams_that_take_nothing_change_no_exit_code(stream, flowers, tmp_path):
    def run(*words: str) -> int:
        line = f'exec "$0" -m vitrail "$@" {stream}'
        command = ["sh", "-c", line, sys.executable, *words]
        return subprocess.run(command, stdout=subprocess.DEVNULL, cwd=tmp_path, timeout=120, check=False).returncode

    assert run(*training(flowers)) == 0
    assert (tmp_path / "run" / "report.html").is_file()
    assert run("train", "nothing-here", "--debug") == 3


@pytest.mark.wide
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal")
def test_a_training_that_ignores_SIGHUP_goes_on_without_its_terminal(flowers, tmp_path):
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "vitrail", *training(flowers)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm"},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ) as process:
        os.close(theirs)
        seen = b""
        while b"10 pictures" not in seen:
            seen += os.read(ours, 1024)
        os.close(ours)
        assert process.wait(timeout=120) == 0
    assert (tmp_path / "run" / "report.html").is_file()
