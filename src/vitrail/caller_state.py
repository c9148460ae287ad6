"""State of the calling process: set as the library needs it while a public function runs, and restored afterwards.

torch keeps its default dtype and device, gradient mode, autocast, random state and thread count for the whole process
or thread. A model is trained and answers alike whatever the caller has set there. Streams that are missing, as under
pythonw and some services, are replaced by the null device.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import IO, Any, ParamSpec, TypeVar, cast

from .errors import MachineWarning

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
STREAMS = {"stdin": os.O_RDONLY, "stdout": os.O_WRONLY, "stderr": os.O_WRONLY}
"""Standard streams in the order of their file descriptors, and how each is opened."""


def isolate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """The same function, run inside `isolated_state`; of a generator, each step of it."""
    if not inspect.isgeneratorfunction(inspect.unwrap(function)):

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            with isolated_state():
                return function(*args, **kwargs)

        return call

    @wraps(function)
    def step(*args: P.args, **kwargs: P.kwargs) -> Iterator[object]:
        generator, end = cast("Generator[object, None, None]", function(*args, **kwargs)), object()
        threads = 0
        try:
            while True:
                with isolated_state(threads):
                    value = next(generator, end)
                    threads = _OwnThreads.count
                if value is end:
                    return
                yield value
        finally:
            with isolated_state(threads):
                generator.close()

    return cast("Callable[P, ResultT]", step)


@contextmanager
def isolated_state(own_threads: int = 0) -> Iterator[None]:
    """Within this block torch computes as the library needs it and all streams exist; the caller's state is restored.

    float32 and the CPU are the defaults, gradients can be computed, autocast is off, float32 products are exact, the
    threads are those that the library chose last, and the random state may be changed.

    Args:
        own_threads: what a generator chose before, if another function has chosen since; 0 is none.
    """
    import torch

    with replace_missing_streams(), ExitStack() as stack:
        dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
        gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
        stack.enter_context(torch.random.fork_rng(gpus))
        stack.enter_context(exact_float32(convolutions=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda", "mps"):
            # Without its cache: weights that autocast has cast stay there until the caller's own context ends, and a
            # training would compute with those of its first step.
            if _is_within_autocast() or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False, cache_enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        try:
            torch.set_default_dtype(torch.float32)
            if own_threads:
                set_own_threads(own_threads)
            _restore_own_threads()
            yield
        finally:
            torch.set_default_dtype(dtype)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


@contextmanager
def exact_float32(convolutions: bool = True) -> Iterator[None]:
    """Within this block float32 products and convolutions are computed in float32, and not in TF32 or bfloat16.

    PyTorch's default is TF32 in convolutions on CUDA, and `torch.set_float32_matmul_precision` of the calling program
    reaches every product; both are restored.

    Args:
        convolutions: false where exporters run inside: they read torch's older flag of cuDNN, which torch refuses while
            the new one is changed.
    """
    import torch

    backends: Any = torch.backends  # whose annotations lack most of them
    places = (backends.cuda.matmul, backends.mkldnn.matmul)
    places += (backends.cudnn.conv, backends.mkldnn.conv) if convolutions else ()
    changed = [(place, place.fp32_precision) for place in places if place.fp32_precision not in ("ieee", "none")]
    for place, _ in changed:
        place.fp32_precision = "ieee"
    try:
        yield
    finally:
        for place, before in changed:
            place.fp32_precision = before


def _is_within_autocast() -> bool:
    """Whether any autocast context is open, also one that is disabled."""
    import torch

    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


@contextmanager
def replace_missing_streams() -> Iterator[None]:
    """Within this block a standard stream that is None (`2>&-`, pythonw) or closed is the null device."""
    with ExitStack() as stack:
        for name, mode in STREAMS.items():
            stream: IO[str] | None = vars(sys)[name]
            if stream is None or getattr(stream, "closed", False):
                null = stack.enter_context(os.fdopen(os.open(os.devnull, mode), "r" if mode == os.O_RDONLY else "w"))
                setattr(sys, name, null)
                stack.callback(setattr, sys, name, stream)
        yield


# -- Threads of torch's operations, as the library chose them last.


class _OwnThreads:
    """The thread count that the library set last, and the process that did."""

    count = 0
    """0: none was set yet."""
    process = 0
    warned = False


def set_own_threads(count: int) -> None:
    """Set torch's thread count for this thread and for the next public functions.

    In a process that was forked from one that has computed, the count is 1: the threads of OpenMP did not come along,
    and torch would wait for them without end.
    """
    _OwnThreads.count = count
    _OwnThreads.process = _OwnThreads.process or os.getpid()
    _restore_own_threads()


def _restore_own_threads() -> None:
    import torch

    count, is_forked = _OwnThreads.count, _OwnThreads.process not in (0, os.getpid())
    if is_forked:
        if count > 1 and not _OwnThreads.warned:
            _OwnThreads.warned = True
            message = (
                f"This process was forked from one that has computed, so it computes with 1 thread instead of {count}: "
                "torch's threads are not there after a fork. For more, start it by multiprocessing's spawn, or load "
                "the model after the fork (gunicorn without --preload)."
            )
            warnings.warn(message, MachineWarning, stacklevel=4)
        count = 1
    if count and torch.get_num_threads() != count:
        torch.set_num_threads(count)
