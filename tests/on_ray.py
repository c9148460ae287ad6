"""A prediction on a local Ray cluster of two workers, one of which is killed on the way.

`python tests/on_ray.py VICTIM predict MODEL ...` starts the cluster, runs the command, kills a worker as soon as the
first part is written, and writes into VICTIM which one and how many parts were there. For - it kills nobody.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray

from vitrail.cli.main import main


def kill_one(parts: Path, victim: Path) -> None:
    """Wait for the first part, then kill one of our own cluster's workers."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        there = len(list(parts.glob("part-*.json")))
        workers = workers_of(os.getpid()) if there else []
        if workers:
            os.kill(workers[0], signal.SIGKILL)
            victim.write_text(json.dumps({"killed": workers[0], "parts": there}))
            return
        time.sleep(0.005)


def workers_of(ancestor: int) -> list[int]:
    """Processes below this one that hold a worker of Ray Data."""
    names = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in names if b"MapWorker" in read(pid, "cmdline") and ancestor in above(pid)]


def above(pid: int) -> list[int]:
    """A process's parent, its parent, and so on."""
    found = []
    while pid > 1:
        state = read(pid, "stat").rpartition(b")")[2].split()
        pid = int(state[1]) if state else 0
        found.append(pid)
    return found


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    victim, *words = sys.argv[1:]
    out = Path(words[words.index("--to") + 1])
    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - the name that Ray reads; its 15 starves beside other tests
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": paths})
    if victim != "-":
        threading.Thread(target=kill_one, args=(out.with_name(f"{out.name}.parts"), Path(victim)), daemon=True).start()
    code = main(words)
    ray.shutdown()
    sys.exit(code)
