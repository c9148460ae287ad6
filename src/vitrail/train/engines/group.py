"""Which of how many processes this one is, as torchrun, SLURM or Ray Train say it; without any of them it is alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...errors import UsageError

FIRST_PORT, PORTS = 20_000, 20_000  # a SLURM job's port lies here, below those that Linux hands out by itself


@dataclass(frozen=True, kw_only=True)
class Group:
    """A process among those that train together; the plain `Group()` is one alone."""

    rank: int = 0
    """0..world-1; rank 0 writes, plans and prints."""
    world: int = 1
    local_rank: int = 0
    """Counted on this machine; the number of the GPU to use."""
    local_world: int = 1
    """How many of them share this machine, and so its cores."""
    address: str = ""
    """HOST:PORT where rank 0 waits for the others; empty where somebody else has brought them together."""
    origin: Literal["alone", "torchrun", "SLURM", "program"] = "alone"
    """Who started them; `program` has made the process group itself, as Ray Train does."""

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.world and 0 <= self.local_rank < self.local_world <= self.world):
            raise UsageError(
                f"The variables of {self.origin} contradict each other: rank {self.rank} of {self.world}, on this "
                f"machine {self.local_rank} of {self.local_world}. Start all processes with one torchrun or srun."
            )


def found(environment: Mapping[str, str] | None = None) -> Group:
    """The group that the environment describes, read only, nothing started.

    torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) come first: Kubernetes operators and
    Ray Train set them too. SLURM's count only inside a step, that is under `srun`: the script of a job has the
    variables of its rank 0 as well, but nobody else beside it.

    Raises:
        UsageError: variables that are missing, no numbers, or contradict each other.
    """
    known = os.environ if environment is None else environment
    if "RANK" in known and "WORLD_SIZE" in known:
        return _torchrun(known)
    if "SLURM_STEP_ID" in known and "SLURM_PROCID" in known:
        return _slurm(known)
    return Group()


def first_host(nodes: str) -> str:
    """The first name of a SLURM list of nodes: node[003-010,12],gpu5 is node003."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\]\-,]*)[^\]]*\]", r"\1", first)


def _torchrun(known: Mapping[str, str]) -> Group:
    world = _number(known, "WORLD_SIZE")
    if world == 1:
        return Group()
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in known]
    if missing:
        raise UsageError(
            f"RANK and WORLD_SIZE={world} are set, but not {' and '.join(missing)}, so the processes cannot find each "
            "other. Start them with torchrun, or unset RANK and WORLD_SIZE to train alone."
        )
    rank = _number(known, "RANK")
    return Group(
        rank=rank,
        world=world,
        local_rank=_number(known, "LOCAL_RANK", rank),
        local_world=_number(known, "LOCAL_WORLD_SIZE", world),
        address=f"{known['MASTER_ADDR']}:{_number(known, 'MASTER_PORT')}",
        origin="torchrun",
    )


def _slurm(known: Mapping[str, str]) -> Group:
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in known else "SLURM_NTASKS"
    world = _number(known, count)
    if world == 1:
        return Group()
    job = _number(known, "SLURM_JOB_ID")
    port = _number(known, "MASTER_PORT", FIRST_PORT + (job + _number(known, "SLURM_STEP_ID")) % PORTS)
    nodes = known.get("SLURM_STEP_NODELIST") or known.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    local_rank = _number(known, "SLURM_LOCALID")
    return Group(
        rank=_number(known, "SLURM_PROCID"),
        world=world,
        local_rank=local_rank,
        local_world=_tasks_here(known, world),
        address=f"{known.get('MASTER_ADDR') or first_host(nodes)}:{port}",
        origin="SLURM",
    )


def _tasks_here(known: Mapping[str, str], world: int) -> int:
    """How many tasks this node has: SLURM lists them as 4(x2),3 for nodes 0, 1 and 2."""
    text = known.get("SLURM_STEP_TASKS_PER_NODE") or known.get("SLURM_TASKS_PER_NODE") or str(world)
    counts: list[int] = []
    for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(nodes or 1)
    return counts[min(_number(known, "SLURM_NODEID", 0), len(counts) - 1)] if counts else world


def _number(known: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = known.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise UsageError(f"The environment variable {name} must be a number from 0. Got {text!r}.")
    return int(text)
