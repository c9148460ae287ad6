"""Contestants as processes of their own, which answer one question at a time and say how they died."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

CONTESTANT = Path(__file__).with_name("contestant.py")
PATIENCE = 900.0
"""Seconds after which a process that does not answer is ended."""


class Died(Exception):
    """A contestant's process has ended before it answered; the message says how."""


class Running:
    """A contestant's process."""

    def __init__(self, asked: dict[str, Any]):
        self.asked = asked
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - end() closes it
        self.process = subprocess.Popen(
            [sys.executable, str(CONTESTANT), json.dumps(asked)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def ask(self, words: str) -> dict[str, Any]:
        """One question and its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(words + "\n")
            self.process.stdin.flush()
            line = self._line()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self.process.wait()
            self.errors.seek(0)
            last = (self.errors.read().strip().splitlines() or ["it said nothing"])[-1]
            raise Died(f"{words}: ended with {status}: {last[:300]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _line(self) -> str:
        """The next line that is an answer; what libraries print is passed over. Silence for too long is a death."""
        assert self.process.stdout is not None
        watch = threading.Timer(PATIENCE, self.process.kill)
        watch.start()
        try:
            return next((line for line in self.process.stdout if line.startswith("{")), "")
        finally:
            watch.cancel()

    def end(self) -> None:
        """Let it go, and wait until its memory is free."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.errors.close()
