"""Collectives of the ranks of one training: broadcast, gather, reduce, and errors. All are no-ops on one process.

Objects are sent as JSON in a tensor, not as pickles, and by gloo on the CPU, so that no GPU waits.
"""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import DataError, PeerError, UsageError, VitrailError
from .liveness import PeerProcess, PeerWatchdog, exit_after_timeout

# -- Rank and world size from the environment of torchrun, SLURM or Ray Train; without any, one process

FIRST_PORT, PORT_COUNT = 20_000, 20_000  # range of a SLURM job's port, below Linux's ephemeral ports


@dataclass(frozen=True, kw_only=True)
class GroupInfo:
    """The place of a process among the ranks of a training; `GroupInfo()` is a single process."""

    rank: int = 0
    """0..world_size-1; rank 0 writes, plans and prints."""
    world_size: int = 1
    local_rank: int = 0
    """Rank on this machine; the index of the GPU to use."""
    local_world_size: int = 1
    """Number of ranks that share this machine and its cores."""
    address: str = ""
    """HOST:PORT where rank 0 waits for the others; empty where the process group exists already."""
    launcher: Literal["alone", "torchrun", "SLURM", "program"] = "alone"
    """What started the processes; with `program` the process group exists already, as under Ray Train."""

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.world_size and 0 <= self.local_rank < self.local_world_size <= self.world_size):
            raise UsageError(
                f"The variables of {self.launcher} contradict each other: rank {self.rank} of {self.world_size}, on "
                f"this machine {self.local_rank} of {self.local_world_size}. Start all processes with one torchrun or "
                "srun."
            )


def group_from_env(env: Mapping[str, str] | None = None) -> GroupInfo:
    """Read the group from the environment; starts nothing.

    torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) come first: Kubernetes operators and
    Ray Train set them too. SLURM's count only inside a step, that is under `srun`: the job's batch script has the
    variables of rank 0 too, but runs alone.

    Raises:
        UsageError: variables are missing, not numeric, or contradict each other.
    """
    variables = os.environ if env is None else env
    if "RANK" in variables and "WORLD_SIZE" in variables:
        return _group_from_torchrun(variables)
    if "SLURM_STEP_ID" in variables and "SLURM_PROCID" in variables:
        return _group_from_slurm(variables)
    return GroupInfo()


def first_host(nodes: str) -> str:
    """The first host of a SLURM node list: node003 of node[003-010,12],gpu5."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\]\-,]*)[^\]]*\]", r"\1", first)


def _group_from_torchrun(env: Mapping[str, str]) -> GroupInfo:
    world = _read_int(env, "WORLD_SIZE")
    if world == 1:
        return GroupInfo()
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in env]
    if missing:
        raise UsageError(
            f"RANK and WORLD_SIZE={world} are set, but not {' and '.join(missing)}, so the processes cannot find each "
            "other. Start them with torchrun, or unset RANK and WORLD_SIZE to train alone."
        )
    rank = _read_int(env, "RANK")
    return GroupInfo(
        rank=rank,
        world_size=world,
        local_rank=_read_int(env, "LOCAL_RANK", rank),
        local_world_size=_read_int(env, "LOCAL_WORLD_SIZE", world),
        address=f"{env['MASTER_ADDR']}:{_read_int(env, 'MASTER_PORT')}",
        launcher="torchrun",
    )


def _group_from_slurm(env: Mapping[str, str]) -> GroupInfo:
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    world = _read_int(env, count)
    if world == 1:
        return GroupInfo()
    job = _read_int(env, "SLURM_JOB_ID")
    port = _read_int(env, "MASTER_PORT", FIRST_PORT + (job + _read_int(env, "SLURM_STEP_ID")) % PORT_COUNT)
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    local_rank = _read_int(env, "SLURM_LOCALID")
    return GroupInfo(
        rank=_read_int(env, "SLURM_PROCID"),
        world_size=world,
        local_rank=local_rank,
        local_world_size=_tasks_on_node(env, world),
        address=f"{env.get('MASTER_ADDR') or first_host(nodes)}:{port}",
        launcher="SLURM",
    )


def _tasks_on_node(env: Mapping[str, str], world_size: int) -> int:
    """Number of tasks on this node; SLURM lists them as 4(x2),3 for nodes 0, 1 and 2."""
    text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or str(world_size)
    counts: list[int] = []
    for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(nodes or 1)
    return counts[min(_read_int(env, "SLURM_NODEID", 0), len(counts) - 1)] if counts else world_size


def _read_int(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise UsageError(f"The environment variable {name} must be a number from 0. Got {text!r}.")
    return int(text)


RANK0_WORK_TIMEOUT = datetime.timedelta(days=1)  # that the others wait for rank 0, which may check a million images
DEATH_CHECK_SECONDS = 3.0  # a connection breaks a moment before the process is gone
CONNECTION_ERROR_MARKS = (
    "gloo",
    "Connection closed",
    "Connection reset",
    "Broken pipe",
    "Timed out waiting",
    "NCCL",
    "store",
)


class RankGroup:
    """The ranks of a training, seen from this process."""

    def __init__(self, info: GroupInfo):
        self.info = info
        self.rank, self.world_size = info.rank, info.world_size
        self.is_rank0 = info.rank == 0
        """Whether this process writes, plans and prints."""
        self.step = 0
        """The current step, counted from 1, for error messages."""
        self.cpu_group: dist.ProcessGroup | None = None
        """gloo, with the long timeout of rank 0's work."""
        self._step_group: dist.ProcessGroup | None = None
        self._watchdog: PeerWatchdog | None = None

    def broadcast_object(self, value: Any = None) -> Any:
        """Return rank 0's value on every rank; it must be JSON serializable."""
        if self.world_size == 1:
            return value
        with self.translate_errors():
            encoded = torch.tensor(list(json.dumps(value).encode()) if self.is_rank0 else [], dtype=torch.uint8)
            size = torch.tensor([len(encoded)])
            dist.broadcast(size, 0, group=self.cpu_group)
            encoded = encoded if self.is_rank0 else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(encoded, 0, group=self.cpu_group)
        return json.loads(bytes(encoded.tolist()))

    def run_on_rank0(self, work: Callable[[], Any]) -> Any:
        """Run `work` on rank 0 only; return its result, or raise its error, on every rank."""
        if self.world_size == 1:
            return work()
        answer: dict[str, Any] = {}
        if self.is_rank0:
            try:
                answer = {"value": work()}
            except VitrailError as error:
                self.broadcast_object(error_to_json(error))
                raise
        answer = self.broadcast_object(answer)
        if "error" in answer:
            raise error_from_json(answer)
        return answer["value"]

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        with self.translate_errors():
            encoded = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
            sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.world_size)]
            dist.all_gather(sizes, torch.tensor([len(encoded)]), group=self.cpu_group)
            longest = max(map(int, sizes))
            gathered = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world_size)]
            padded = torch.cat([encoded, encoded.new_zeros(longest - len(encoded))])
            dist.all_gather(gathered, padded, group=self.cpu_group)
        return [json.loads(bytes(text[: int(size)].tolist())) for text, size in zip(gathered, sizes, strict=True)]

    def all_reduce_max(self, *numbers: int) -> tuple[int, ...]:
        """Return the maximum over ranks of each number, so that all ranks act alike after the same step.

        Raises:
            PeerError: another rank or the launcher has died.
        """
        if self.world_size == 1:
            return numbers
        self.check_alive()
        with self.translate_errors():
            largest = torch.tensor(numbers)
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._step_group)
        return tuple(largest.tolist())

    def check_alive(self) -> None:
        """Raise PeerError if another rank or the launcher has died; without communication or waiting."""
        if self._watchdog is not None and (death := self._watchdog.find_death()):
            raise PeerError(self._death_message(death))

    def leave(self) -> None:
        """Release the other ranks with a last broadcast, and disconnect."""
        if self._watchdog is None:
            return
        self.broadcast_object()
        self.disconnect()

    def connect(self, device: str, timeout: float) -> None:
        """Make the process groups and start the watchdog.

        Raises:
            PeerError: the other ranks did not connect in time.
        """
        limit = datetime.timedelta(seconds=timeout)
        if self.info.launcher != "program":
            _init_process_group(self.info, device, limit)
        self.cpu_group = dist.new_group(backend="gloo", timeout=RANK0_WORK_TIMEOUT)
        self._step_group = dist.new_group(backend="gloo", timeout=limit)
        own = PeerProcess.from_current_process(self.rank)
        others = [PeerProcess(**facts) for facts in self.all_gather_object(vars(own)) if facts["rank"] != self.rank]
        self._watchdog = PeerWatchdog(own, others, has_launcher="TORCHELASTIC_RUN_ID" in os.environ)

    @contextmanager
    def pause_watchdog(self) -> Iterator[None]:
        """Within this block another rank's death does not end this process, which saves without communication."""
        with nullcontext() if self._watchdog is None else self._watchdog.pause_for_saving():
            yield

    def disconnect(self) -> None:
        """Stop the watchdog and destroy the CPU groups, without communication."""
        if self._watchdog is None:
            return
        self._watchdog.stop()
        self._watchdog = None
        for group in (self.cpu_group, self._step_group):
            with suppress(RuntimeError):
                dist.destroy_process_group(group)

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks, on the tensor's device; without gradient."""
        if self.world_size == 1:
            return tensor.detach()
        with self.translate_errors():
            tensor = tensor.detach().clone()
            dist.all_reduce(tensor)
        return tensor

    def broadcast_weights(self, model: nn.Module) -> None:
        """Copy rank 0's weights and buffers to every rank; for a model on the CPU."""
        if self.world_size == 1:
            return
        with self.translate_errors(), torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.data, 0, group=self.cpu_group)

    def check_identical(self, facts: dict[str, str]) -> None:
        """Check that all ranks have the same data, plan and code.

        Raises:
            DataError: a fact differs; the message says which, on which ranks.
        """
        all_facts = self.all_gather_object(facts)
        differing = {
            name: [rank for rank, theirs in enumerate(all_facts) if theirs[name] != all_facts[0][name]]
            for name in facts
        }
        if any(differing.values()):
            differences = "; ".join(
                f"{name}: {all_facts[0][name][:16]} on rank 0, {all_facts[ranks[0]][name][:16]} on rank "
                f"{', '.join(map(str, ranks))}"
                for name, ranks in differing.items()
                if ranks
            )
            raise DataError(
                f"The processes of this training do not have the same to work with ({differences}), so their gradients "
                "would not belong together. Give every machine the same data, command and installation, and start "
                "again."
            )

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Within this block errors of gloo, NCCL or the store become a PeerError that names the dead rank."""
        if self.world_size == 1:
            yield
            return
        try:
            yield
        except RuntimeError as error:
            broken = isinstance(error, dist.DistError) or any(mark in str(error) for mark in CONNECTION_ERROR_MARKS)
            if isinstance(error, VitrailError) or not broken:
                raise
            raise PeerError(self._explain_error(error)) from error

    def _explain_error(self, error: RuntimeError) -> str:
        death = None if self._watchdog is None else self._watchdog.find_death(DEATH_CHECK_SECONDS)
        if death is not None:
            return self._death_message(death)
        cause = str(error).strip().splitlines()[0][:200].rstrip(".")
        hosts = self._watchdog.remote_hosts() if self._watchdog is not None else ""
        process = f"Another process on {hosts}" if hosts else "Another process"
        return self._death_message(f"{process} did not answer in time or closed its connection ({cause})")

    def _death_message(self, event: str) -> str:
        return f"{event} at step {self.step}, so the training cannot go on here; its own output says why, if it could."


SINGLE_PROCESS = RankGroup(GroupInfo())
_ERROR_CLASSES = {error.__name__: error for error in (*VitrailError.__subclasses__(), VitrailError)}


@contextmanager
def join_group(device: str, timeout: float) -> Iterator[RankGroup]:
    """Join the process group of the environment; leave it at the end of the block.

    torch's default group stays until the process ends, for the next training of the same program: a second rendezvous
    would find the old addresses in torchrun's store.

    Args:
        device: cpu or cuda; every rank takes the GPU of its local rank.
        timeout: seconds that a rank waits for another one.

    Raises:
        UsageError: variables that contradict each other, or a device that several processes cannot share.
        PeerError: other ranks did not connect, or one of them died.
    """
    info = _current_info()
    if info.world_size == 1:
        yield SINGLE_PROCESS
        return
    if device not in ("cpu", "cuda"):
        raise UsageError(f"Several processes train on cpu or cuda, where each takes a GPU of its own. Got {device!r}.")
    group = RankGroup(info)
    try:
        group.connect(device, timeout)
        yield group
        group.leave()
    except BaseException:
        if dist.is_initialized() and dist.get_backend() == "nccl":  # it would wait forever for the other ranks
            atexit.unregister(_destroy_process_group)
        raise
    finally:
        group.disconnect()


def error_to_json(error: VitrailError) -> dict[str, Any]:
    """An error as JSON values, to send to the other ranks."""
    return {"error": type(error).__name__, "text": str(error), "code": error.exit_code}


def error_from_json(facts: Mapping[str, Any]) -> VitrailError:
    """The same error, rebuilt on the rank that received it."""
    error = _ERROR_CLASSES.get(facts["error"], VitrailError)(facts["text"])
    error.exit_code = facts["code"]  # InterruptedRun's depends on the signal
    return error


def is_rank0() -> bool:
    """Whether this process is rank 0, which prints, or the only process."""
    return _current_info().rank == 0


def _current_info() -> GroupInfo:
    return _existing_group() if dist.is_available() and dist.is_initialized() else group_from_env()


def _init_process_group(group: GroupInfo, device: str, limit: datetime.timedelta) -> None:
    if device == "cuda":
        torch.cuda.set_device(group.local_rank % torch.cuda.device_count())
    backend = "gloo" if device == "cpu" else "nccl"
    init_method = "env://" if group.launcher == "torchrun" else f"tcp://{group.address}"
    seconds = limit.total_seconds()

    def failure_message(why: str) -> str:
        return (
            f"Rank {group.rank} of {group.world_size} did not meet the others at {group.address} within {seconds:g} s "
            f"({why}). See that all of them were started and that the port is free."
        )

    try:
        # A program that does not answer on the port would block torch.
        with exit_after_timeout(seconds, failure_message("another program may have the port")):
            dist.init_process_group(backend, init_method, timeout=limit, world_size=group.world_size, rank=group.rank)
        atexit.register(_destroy_process_group)
    except RuntimeError as error:
        raise PeerError(failure_message(str(error).strip().splitlines()[0][:200].rstrip("."))) from error


def _destroy_process_group() -> None:
    """At the end of the process, which gloo's threads would abort otherwise."""
    with suppress(RuntimeError):
        if dist.is_initialized():
            dist.destroy_process_group()


def _existing_group() -> GroupInfo:
    """The process group that this program, or Ray Train, has made already."""
    rank, world, from_env = dist.get_rank(), dist.get_world_size(), group_from_env()
    if (from_env.rank, from_env.world_size) == (rank, world):
        return dataclasses.replace(from_env, launcher="program")
    local = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return GroupInfo(rank=rank, world_size=world, local_rank=local[0], local_world_size=local[1], launcher="program")
