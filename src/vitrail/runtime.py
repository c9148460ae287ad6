"""Runtime choices for this machine: device, precision, threads and compilation, each with its reason."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from .caller_state import set_own_threads
from .errors import UsageError
from .openmp import has_short_spin

Precision = Literal["float32", "bfloat16", "float16"]
PrecisionName = Literal["float32", "bfloat16", "bf16", "float16", "fp16"]
"""A precision as a person writes it."""
PRECISIONS: dict[str, Precision] = {
    "float32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "fp16": "float16",
}  # fmt: skip
StrategyChoice = Literal["auto", "ddp", "fsdp"]
MIN_THREAD_LIMIT, MAX_WORKERS = 64, 256
"""Threads of torch that may be asked for on a machine with few cores, to repeat a run of another; decoding threads."""
BUSY_LOAD_PER_CORE = 2.0
"""Load per core above which a training gets less than half of the machine."""


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """The user's compute settings; auto is resolved by `choose`."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Format of the large products; weights and losses stay in float32."""
    threads: int = 0
    """Threads of the CPU's products; 0 takes what OMP_NUM_THREADS says, else every core that this process may use."""
    num_workers: int = -1
    """Threads that decode images while the model trains; 0 decodes in the main thread, -1 takes every core."""
    compile: bool = False
    """Compile the training step with torch.compile; needs a C++ compiler on a CPU."""
    strategy: StrategyChoice = "auto"
    """How several processes train one model: ddp copies it into each, fsdp splits it; auto splits what does not fit."""
    timeout: float = 1800.0
    """Seconds that processes which train together wait for one that does not answer."""


@dataclass(frozen=True)
class RuntimeChoice:
    """One choice and its reason."""

    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The resolved settings; `reasons` maps each name to a sentence, which `vitrail doctor` prints."""

    device: str
    precision: Precision
    threads: int
    num_workers: int
    compile: bool
    strategy: StrategyChoice = "auto"
    timeout: float = 1800.0
    reasons: dict[str, str]


def choose(settings: RuntimeSettings, num_processes: int = 1) -> Runtime:
    """Resolve `auto` for this machine, without changing any state; see `apply`.

    Args:
        num_processes: processes of one training that share this machine's cores.

    Raises:
        UsageError: a missing device, a precision that it does not support, or a timeout of 0 or less.
    """
    if settings.timeout <= 0:
        raise UsageError(f"compute.timeout must be a number of seconds above 0. Got {settings.timeout}.")
    device = _choose_device(settings.device)
    precision = _choose_precision(settings.precision, device.value)
    threads = _choose_threads(settings.threads, num_processes)
    workers = _choose_workers(settings.num_workers, threads)
    compiled = _choose_compile(settings.compile, device.value)
    return Runtime(
        device=device.value,
        precision=cast(Precision, precision.value),
        threads=int(threads.value),
        num_workers=int(workers.value),
        compile=settings.compile,
        strategy=settings.strategy,
        timeout=settings.timeout,
        reasons={
            "device": device.reason,
            "precision": precision.reason,
            "threads": threads.reason,
            "num_workers": workers.reason,
            "compile": compiled.reason,
        },
    )


def parse_precision(word: str) -> Precision:
    """A precision by its name or its short name, bf16 or fp16.

    Raises:
        UsageError: an unknown name.
    """
    if word not in PRECISIONS:
        raise UsageError(f"precision must be one of {', '.join(PRECISIONS)}. Got {word!r}.")
    return PRECISIONS[word]


def apply(runtime: Runtime) -> None:
    """Set torch's thread count and, on a CPU, keep freed memory for the next batch."""
    set_own_threads(runtime.threads)
    if runtime.device == "cpu":
        keep_freed_memory()


def set_thread_count(count: int) -> None:
    """Set torch's thread count in the calling thread."""
    import torch

    torch.get_num_threads()  # torch's first call in a thread would reset the count
    torch.set_num_threads(count)


def keep_freed_memory() -> bool:
    """Make glibc keep up to 1 GiB of freed memory instead of returning it to the system.

    By default glibc maps large blocks anew each time, and the system fills their pages with zeros: inference of ViT-Ti
    at 224 in float32 took 1.4 times as long (EXPERIMENTS.md). Settings in the environment and other C libraries are
    left alone.

    Returns:
        Whether glibc keeps memory now.
    """
    import ctypes

    if explain_unchanged_allocator():
        return False
    library = ctypes.CDLL(None)
    # M_MMAP_THRESHOLD (larger blocks are mapped separately), and M_TRIM_THRESHOLD (more free memory is returned)
    return all(library.mallopt(option, 2**30) == 1 for option in (-3, -1))


def explain_unchanged_allocator() -> str:
    """Why `keep_freed_memory` leaves the allocator unchanged; empty if it changes it."""
    owned = [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"))]
    if owned:
        return f"{' and '.join(sorted(owned))} of the environment decides"
    return "" if platform.libc_ver()[0] == "glibc" else "only glibc's allocator is known to need it"


def busy_cpu_warning(runtime: Runtime, are_threads_measured: bool = False) -> str:
    """A warning if other programs keep all cores busy; else empty.

    Args:
        are_threads_measured: whether the training chooses its threads by their pace.
    """
    if runtime.threads < 2 or runtime.device != "cpu" or not hasattr(os, "getloadavg"):
        return ""
    load, cores = os.getloadavg()[0], _count_cores()
    if load < BUSY_LOAD_PER_CORE * cores:
        return ""
    busy = f"Other programs keep this machine busy (load {load:.0f} on {cores} cores)"
    if are_threads_measured:
        return f"{busy}: fewer steps fit into the minutes than without them. One thread is tried beside all."
    if has_short_spin():
        return f"{busy}: fewer steps fit into the minutes than without them."
    return (
        f"{busy}, and {runtime.threads} threads wait for each other more than they compute. End those programs, give "
        "--compute.threads 1, or set GOMP_SPINCOUNT=5000 before torch is imported."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory is full; torch raises a plain RuntimeError for it on a CPU."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _choose_device(requested: str) -> RuntimeChoice:
    import torch

    if requested == "auto":
        if torch.cuda.is_available():
            return RuntimeChoice("cuda", f"{torch.cuda.get_device_name()} is here")
        if torch.backends.mps.is_available():
            return RuntimeChoice("mps", "Apple's GPU is here")
        return RuntimeChoice("cpu", "no GPU that torch can use")
    try:
        kind = torch.device(requested).type
    except RuntimeError as error:
        raise UsageError(f"device must be auto, cpu, cuda, cuda:N or mps. Got {requested!r}.") from error
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here.get(kind, False):
        usable = " or ".join(name for name, there in here.items() if there)
        raise UsageError(f"The device {requested!r} is not usable with this torch ({torch.__version__}). Use {usable}.")
    count = torch.cuda.device_count() if kind == "cuda" else 0
    if kind == "cuda" and (torch.device(requested).index or 0) >= count:
        raise UsageError(
            f"The device {requested!r} is not there: the GPUs of this machine are cuda:0 to cuda:{count - 1}."
        )
    return RuntimeChoice(requested, "asked for")


def _choose_precision(requested: str, device: str) -> RuntimeChoice:
    if requested == "float16" and not device.startswith("cuda"):
        raise UsageError(
            f"float16 is for GPUs without bfloat16: {device} has no fast products of it. Use float32 or bfloat16."
        )
    if requested != "auto":
        return RuntimeChoice(requested, "asked for")
    if device.startswith("cuda"):
        if supports_bfloat16(device):
            return RuntimeChoice("bfloat16", "the GPU has bfloat16 products")
        return RuntimeChoice(
            "float16", "the GPU has no bfloat16; the loss is scaled so that small gradients are not lost"
        )
    if device == "mps":
        return RuntimeChoice("float32", "bfloat16 has not been measured on this device")
    if cpu_supports_bfloat16():
        return RuntimeChoice("bfloat16", "the CPU has bfloat16 instructions (AVX512-BF16 or AMX)")
    return RuntimeChoice(
        "float32", "the CPU has no bfloat16 instructions; without them its products are several times slower"
    )


def supports_bfloat16(device: str) -> bool:
    """Whether a device has native bfloat16 products, not only emulated ones as GPUs before Ampere."""
    if device == "cpu":
        return cpu_supports_bfloat16()
    if not device.startswith("cuda"):
        return True
    import torch

    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def cpu_supports_bfloat16() -> bool:
    """Whether the CPU has bfloat16 dot products, by the flags that Linux lists."""
    return bool(cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"})


def cpu_flags() -> frozenset[str]:
    """The CPU's instruction sets as Linux lists them; empty on other systems."""
    return frozenset(_read_cpuinfo("flags", "features").split())


def cpu_name() -> str:
    """The CPU's model name."""
    return _read_cpuinfo("model name") or platform.processor() or platform.machine()


def _read_cpuinfo(*names: str) -> str:
    """The first of these fields in Linux's list of CPUs; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.lower().startswith(names)), "")


def _choose_threads(requested: int, num_processes: int) -> RuntimeChoice:
    if requested < 0:
        raise UsageError(f"threads must be 0 (all cores) or more. Got {requested}.")
    cores = _count_cores()
    if requested > (limit := max(MIN_THREAD_LIMIT, 4 * cores)):
        raise UsageError(
            f"threads must be at most {limit}: this process may use {cores} cores, and more threads only wait for each "
            f"other. Got {requested}. Use {cores}, or 0 for all cores."
        )
    if requested:
        return RuntimeChoice(str(requested), f"asked for; this process may use {cores} cores")
    quota = _read_cgroup_cores()
    if num_processes > 1:
        if _has_own_cores(cores, num_processes):
            own = max(1, min(cores, (quota or cores * num_processes) // num_processes))
            return RuntimeChoice(str(own), f"SLURM gives each of {num_processes} processes {cores} cores of its own")
        least = max(1, min(cores, quota or cores) // num_processes)
        return RuntimeChoice(
            str(least), f"{num_processes} processes of this training share {min(cores, quota or cores)} cores"
        )
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and 0 < int(named) < cores:
        return RuntimeChoice(named, f"OMP_NUM_THREADS says so; this process may use {cores} cores")
    if quota is not None and quota < cores:
        return RuntimeChoice(str(max(1, quota)), f"the container may use {quota} of {cores} cores")
    return RuntimeChoice(str(cores), "every core that this process may use")


def _has_own_cores(cores: int, num_processes: int) -> bool:
    """Whether SLURM has given each of its tasks on this machine its own cores."""
    node_cores = os.environ.get("SLURM_CPUS_ON_NODE", "") if "LOCAL_RANK" not in os.environ else ""  # else torchrun's
    return node_cores.isdecimal() and cores * num_processes <= int(node_cores)


def count_usable_cores() -> int:
    """Cores that this process may use, by CPU affinity and the container's quota; at least 1."""
    return min(_count_cores(), _read_cgroup_cores() or _count_cores())


def _count_cores() -> int:
    """Cores by CPU affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _choose_workers(requested: int, threads: RuntimeChoice) -> RuntimeChoice:
    if requested < -1:
        raise UsageError(f"workers must be -1 (all cores), 0 (none) or more. Got {requested}.")
    if requested > MAX_WORKERS:
        raise UsageError(f"num_workers must be at most {MAX_WORKERS} threads. Got {requested}. Use -1 for all cores.")
    if requested >= 0:
        return RuntimeChoice(str(requested), "asked for")
    return RuntimeChoice(threads.value, "decoding and training share the cores")


def _read_cgroup_cores() -> int | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, round(int(quota) / int(period)))


def _choose_compile(requested: bool, device: str) -> RuntimeChoice:
    if requested:
        return RuntimeChoice("true", "asked for")
    if device == "cpu":
        return RuntimeChoice("false", "on a CPU the plain step is nearly as fast and starts at once")
    return RuntimeChoice("false", "not asked for; on a GPU compile=true is worth trying for runs over ten minutes")
