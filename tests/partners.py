"""Start several processes of one training, as torchrun, SLURM and others do: by variables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

Processes = list["subprocess.Popen[str]"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(words: Sequence[str], world: int = 2, kind: str = "torchrun") -> Processes:
    """`python *words` once for each rank, in a session of its own, so that orphans can be counted."""
    return start_each([words] * world, kind)


def start_each(lines: Sequence[Sequence[str]], kind: str = "torchrun") -> Processes:
    """As `start`, each rank with words of its own."""
    port = str(free_port())
    return [
        subprocess.Popen(
            [sys.executable, *words],
            env={**clean(), **variables(kind, rank, len(lines), port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank, words in enumerate(lines)
    ]


def variables(kind: str, rank: int, world: int, port: str) -> dict[str, str]:
    if kind == "SLURM":
        return {
            "SLURM_JOB_ID": "4121", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(world),
            "SLURM_LOCALID": str(rank), "SLURM_JOB_NODELIST": "localhost", "MASTER_PORT": port,
        }  # fmt: skip
    return {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip


def clean() -> dict[str, str]:
    """This environment without what another launcher may have left in it, and with one thread for each process."""
    ours = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC_"))}
    return {name: text for name, text in ours.items() if name not in ("RANK", "WORLD_SIZE")} | {"OMP_NUM_THREADS": "1"}


def ended(processes: Processes, seconds: float = 120) -> list[tuple[int, str, str]]:
    """Code, output and errors of each; whoever is still there after so long is ended, which fails the test."""
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=seconds)
            found.append((process.returncode, out, err))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    return found


def orphans(processes: Processes) -> list[int]:
    """Processes of these sessions that are still there (ended ones that nobody has asked after do not count)."""
    sessions = {process.pid for process in processes}
    left = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat") as file:
                    state, _, _, session, *_ = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(session) in sessions and state != "Z":
                left.append(int(name))
    return left
