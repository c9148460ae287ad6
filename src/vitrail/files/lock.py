"""One writer per folder: a small file that says which process holds it, and that a dead process holds nothing.

Whether a process of this machine lives can be asked. One of another machine gives a sign of life by dating its file
anew; when the signs have stopped for some minutes it counts as dead, so that a job can go on elsewhere.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import UsageError
from .disk import resource_errors

HEARTBEAT_SECONDS, STALE_SECONDS = 15.0, 180.0
"""Seconds between signs of life, and without one after which a process of another machine counts as dead."""


class Lock:
    """Hold a folder while inside `with Lock(folder):`.

    Raises:
        UsageError: a living process holds it; the message says which and since when.
        ResourceError: the lock file cannot be written.
    """

    FILE = ".lock"

    def __init__(self, folder: Path):
        self.path = Path(folder) / self.FILE
        self.since = 0.0
        """When the folder was taken, by the clock that dates its files, in seconds; 0 before that."""
        self._own = _describe_process()
        self._stop = threading.Event()

    def __enter__(self) -> Lock:
        with resource_errors(self.path):
            while not _create_lock_file(self.path, self._own):
                self._remove_if_stale()
            self.since = self.path.stat().st_mtime
        self._stop.clear()
        threading.Thread(target=self._send_heartbeats, name="vitrail-lock", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if _read_holder(self.path) == self._own:
            self.path.unlink(missing_ok=True)

    def _send_heartbeats(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                if _read_holder(self.path) == self._own:
                    os.utime(self.path)

    def _remove_if_stale(self) -> None:
        holder = _read_holder(self.path)
        here = holder.get("host") == socket.gethostname()
        silent = 0.0 if here or not holder else _seconds_since_heartbeat(self.path)
        if holder and (_is_alive(holder) if here else silent < STALE_SECONDS):
            elsewhere = f"try again in {STALE_SECONDS - silent:.0f} s, when it counts as dead, or "
            raise UsageError(
                f"{self.path.parent} is in use by process {holder['pid']} on {holder['host']} since {holder['since']}. "
                f"Wait for it or choose another folder; if that process is gone, {'' if here else elsewhere}"
                f"delete {self.path}."
            )
        aside = self.path.with_name(f"{self.FILE}-{secrets.token_hex(4)}")
        with suppress(FileNotFoundError):  # another process was quicker
            self.path.rename(aside)
            if _read_holder(aside) == holder:
                aside.unlink()
            else:  # not the dead one: another process took its place in between
                aside.rename(self.path)


def _create_lock_file(path: Path, own: dict[str, Any]) -> bool:
    """Create the lock file, which the file system allows to exactly one process."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, json.dumps(own).encode())
    finally:
        os.close(descriptor)
    return True


def _describe_process() -> dict[str, Any]:
    since = time.strftime("%Y-%m-%d %H:%M")
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": _process_start_time(os.getpid()),
        "since": since,
    }


def _read_holder(path: Path) -> dict[str, Any]:
    """What the lock file says; nothing if it is gone or damaged. One being written this moment gets a second look."""
    for wait in (0.0, 0.2):
        time.sleep(wait)
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            continue
        if isinstance(found, dict) and found.keys() == {"pid", "host", "started", "since"}:
            return found
    return {}


def _seconds_since_heartbeat(path: Path) -> float:
    """Seconds since a lock file was dated, by the clock of the file system that it lies on."""
    asked = path.with_name(f"{Lock.FILE}-{secrets.token_hex(4)}")
    try:
        dated = path.stat().st_mtime
        asked.touch(exist_ok=False)
        return max(0.0, asked.stat().st_mtime - dated)
    except FileNotFoundError:  # it is gone this moment
        return 0.0
    finally:
        asked.unlink(missing_ok=True)


def _is_alive(holder: dict[str, Any]) -> bool:
    return _pid_exists(int(holder["pid"])) and _process_start_time(int(holder["pid"])) == holder["started"]


def _pid_exists(pid: int) -> bool:
    if os.name == "nt":
        return True  # signal 0 would end the process there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # of another process
    return True


def _process_start_time(pid: int) -> str | None:
    """When a process began, in clock ticks since boot, so that a reused number is not taken for the old process."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # not Linux, or no such process
    return None if state == "Z" else rest[18]  # Z: ended, and only its parent has not noticed
