"""Start several processes of one training, as torchrun, SLURM and others do: by variables."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

Processes = list["subprocess.Popen[str]"]

NOBODYS = range(20_000, 32_768)
"""Ports that Linux gives to nobody who asks for any: between this test's look and rank 0's use lie some seconds."""


def free_port() -> int:
    while True:
        port = random.SystemRandom().choice(NOBODYS)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def start(words: Sequence[str], world: int = 2, kind: str = "torchrun") -> Processes:
    """`python *words` once for each rank, in a session of its own, so that orphans can be counted."""
    return start_each([words] * world, kind)


def start_each(lines: Sequence[Sequence[str]], kind: str = "torchrun", port: int | None = None) -> Processes:
    """As `start`, each rank with words of its own; they meet at this port, or at one that is free."""
    port_text = str(free_port() if port is None else port)
    return [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", *words],
            env={**clean(), **variables(kind, rank, len(lines), port_text)},
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
    """Code, output and errors of each.

    Raises:
        AssertionError: some are still there after so long; says what each of all said, and where those stood.
    """
    until = time.monotonic() + seconds
    found, late = [], []
    for rank, process in enumerate(processes):
        try:
            out, err = process.communicate(timeout=max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            late.append(rank)
            os.killpg(process.pid, signal.SIGABRT)  # faulthandler writes the stack of each thread
            out, err = process.communicate(timeout=30)
        found.append((process.returncode, out, err))
    assert not late, f"After {seconds:g} s ranks {late} were still there:\n{_told(found)}"
    return found


def _told(found: Sequence[tuple[int, str, str]]) -> str:
    return "\n".join(f"rank {rank}, exit {code}:\n{out}\n{err}" for rank, (code, out, err) in enumerate(found))


def orphans(processes: Processes, patience: float = 10.0) -> list[int]:
    """Processes of these sessions that are still there after so many seconds, in which a service that was asked to end
    may do so (ended ones that nobody has asked after do not count)."""
    until = time.monotonic() + patience
    while (left := _living(processes)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _living(processes: Processes) -> list[int]:
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
