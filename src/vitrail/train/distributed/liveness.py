"""Watch the other ranks on this machine and the launcher, so that no rank waits for a dead one."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...errors import PeerError

CHECK_SECONDS = 0.5
GRACE_SECONDS = 4.0  # for a process to end by itself after another rank's death


@dataclass(frozen=True)
class PeerProcess:
    """Another process of the training."""

    rank: int
    pid: int
    host: str
    start_time: str
    """From its machine's /proc: a reused pid belongs to another process."""

    @classmethod
    def from_current_process(cls, rank: int) -> PeerProcess:
        """This process."""
        return cls(rank, os.getpid(), socket.gethostname(), _process_start_time(os.getpid()))

    def __str__(self) -> str:
        return f"Rank {self.rank} (pid {self.pid} on {self.host})"

    def is_alive(self) -> bool:
        """Whether the process is running; only for one on this machine."""
        return _process_start_time(self.pid) == self.start_time


class PeerWatchdog:
    """Checks twice a second that all ranks on this machine and the launcher are alive.

    Nothing wakes a process that waits for a dead one inside NCCL. A process that has not ended four seconds after a
    death is ended here, with the message and exit code 7 of a PeerError.
    """

    def __init__(self, own: PeerProcess, others: Sequence[PeerProcess], has_launcher: bool):
        self._local_peers = [
            other for other in others if other.host == own.host and other.is_alive()
        ]  # one pid namespace, too
        self._remote_peers = [other for other in others if other.host != own.host]
        self._launcher = os.getppid() if has_launcher else None
        self._stopping = threading.Event()
        self._saving = threading.Event()
        self._death: str | None = None
        threading.Thread(target=self._watch_peers, name="vitrail-partners", daemon=True).start()

    def find_death(self, timeout: float = 0.0) -> str | None:
        """The start of a sentence about a process that has died; checks again for `timeout` seconds."""
        until = time.monotonic() + timeout
        while self._death is None and time.monotonic() < until:
            self._death = self._find_dead_peer()
            time.sleep(0.05)
        return self._death

    def remote_hosts(self) -> str:
        """The other machines, whose processes cannot be watched from here."""
        return ", ".join(sorted({other.host for other in self._remote_peers}))

    def stop(self) -> None:
        """Stop watching: other ranks may end from now on."""
        self._stopping.set()

    @contextmanager
    def pause_for_saving(self) -> Iterator[None]:
        """Within this block this process is not ended: saving may take longer than the grace period."""
        self._saving.set()
        try:
            yield
        finally:
            self._saving.clear()

    def _watch_peers(self) -> None:
        while not self._stopping.wait(CHECK_SECONDS):
            self._death = self._find_dead_peer()
            if self._death is not None:
                ends = self._stopping.wait(GRACE_SECONDS)
                while self._saving.is_set() and not ends:
                    ends = self._stopping.wait(GRACE_SECONDS)
                if not ends:
                    exit_now(f"{self._death}; this process was still waiting for it and is ended.")
                return

    def _find_dead_peer(self) -> str | None:
        if self._launcher is not None and os.getppid() != self._launcher:
            return f"The launcher (pid {self._launcher}) died"
        dead = next((other for other in self._local_peers if not other.is_alive()), None)
        return None if dead is None else f"{dead} died"


@contextmanager
def exit_after_timeout(seconds: float, message: str) -> Iterator[None]:
    """End the process with this message if the block takes longer, for calls that cannot be interrupted."""
    timer = threading.Timer(min(seconds + GRACE_SECONDS, threading.TIMEOUT_MAX), exit_now, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def exit_now(message: str) -> None:
    """End the process like a PeerError with this message."""
    sys.stderr.write(f"vitrail: {message}\n")
    sys.stderr.flush()
    os._exit(PeerError.exit_code)


def _process_start_time(pid: int) -> str:
    """Start time of a process in ticks since boot; empty if it has ended or /proc cannot be read."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _process_exists_mark(pid)
    return "" if state in "ZX" else rest[18]


def _process_exists_mark(pid: int) -> str:
    """Without /proc: a constant if the process exists, else empty."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "there"
