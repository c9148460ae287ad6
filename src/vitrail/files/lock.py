"""A lock file that allows one writer per folder and names the process that holds it.

A lock of a dead process is removed. Processes that this one can see are looked up; one of another machine, or of
another container with process numbers of its own, updates the modification time of its lock file as a heartbeat, and
counts as dead some minutes after the last one.
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
"""Seconds between heartbeats, and after the last one until a process of another machine counts as dead."""


class Lock:
    """Lock a folder inside `with Lock(folder):`.

    Raises:
        UsageError: a living process holds the lock; the message names it and since when.
        ResourceError: the lock file cannot be written.
    """

    FILE = ".lock"

    def __init__(self, folder: Path):
        self.path = Path(folder) / self.FILE
        self.since = 0.0
        """When the lock was taken, in seconds by the clock of its file system; 0 before that."""
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
        here = all(holder.get(key) == self._own[key] for key in ("host", "system"))
        silent = 0.0 if here or not holder else _seconds_since_heartbeat(self.path)
        if holder and (_is_alive(holder) if here else silent < STALE_SECONDS):
            elsewhere = f"try again in {STALE_SECONDS - silent:.0f} s, when it counts as dead, or "
            container = "" if here or holder["host"] != self._own["host"] else "another container of "
            raise UsageError(
                f"{self.path.parent} is in use by process {holder['pid']} on {container}{holder['host']} since "
                f"{holder['since']}. "
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
    """Create the lock file; False if it exists."""
    try:
        with path.open("x") as file:
            file.write(json.dumps(own))
    except FileExistsError:
        return False
    return True


def _describe_process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "system": _describe_system(),
        "started": _process_start_time(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M"),
    }


def _read_holder(path: Path) -> dict[str, Any]:
    """The content of the lock file, read twice in case it is half written; empty if it is gone or damaged."""
    for wait in (0.0, 0.2):
        time.sleep(wait)
        try:
            holder = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            continue
        if isinstance(holder, dict) and holder.keys() >= {"pid", "host", "started", "since"}:
            return holder
    return {}


def _seconds_since_heartbeat(path: Path) -> float:
    """Seconds since a lock file was updated, by the clock of its file system."""
    probe = path.with_name(f"{Lock.FILE}-{secrets.token_hex(4)}")
    try:
        updated = path.stat().st_mtime
        probe.touch(exist_ok=False)
        return max(0.0, probe.stat().st_mtime - updated)
    except FileNotFoundError:  # the lock was just released
        return 0.0
    finally:
        probe.unlink(missing_ok=True)


def _is_alive(holder: dict[str, Any]) -> bool:
    pid = int(holder["pid"])
    if os.name != "nt":  # on Windows signal 0 would end the process
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's process
    return _process_start_time(pid) in (None, holder["started"])


def _describe_system() -> str | None:
    """The running kernel and the process namespace: containers have their own, so the same number is another process.

    None on systems other than Linux.
    """
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _process_start_time(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot, to recognise a reused process id; empty for a zombie.

    None where it cannot be read: not Linux, or a process of another user whom `hidepid` hides.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state == "Z" else rest[18]  # Z: a zombie
