"""The one place that reads pickled weights: tensors and plain values come out of it, and nothing in the file runs.

Pickle is a programming language, and a hostile file can ask for anything. The file is read by `pickle_machine`, which
calls nothing but the few functions of `pickled_tensors`; a file that names anything else is refused with the list of
what it named. There is no second, more trusting way to read it.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import DamagedFileError
from .archive import Archive
from .kinds import refuse_other
from .pickle_machine import OPERATIONS, Broken, Inert, Machine
from .pickled_names import refused
from .pickled_tensors import TensorMaker

PICKLE = 16 * 2**20
"""Bytes of the longest pickle that is read; the tensors' numbers lie outside it."""
DEPTH = 64
"""Dictionaries inside dictionaries; training scripts keep about four."""
NAME = 512
"""Letters of the longest full name of a tensor in a TorchScript archive."""
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
"""The numbers that torch wrote first into its files before 1.6."""


def load_state_dict(path: Path) -> dict[str, object]:
    """`open_state_dict` without its file."""
    return open_state_dict(path)[0]


def open_state_dict(path: Path) -> tuple[dict[str, object], mmap.mmap]:
    """Read a `.pt`, `.pth`, `.bin` or `.ckpt` file that holds a dictionary, of tensors or wrapped around them.

    Tensors are views of the file, which is mapped and comes out beside them, so that numbers are read when they are
    used; writing to them does not change it. Of a TorchScript archive the tensors come out by the names of its
    modules. What a training keeps beside its tensors (arguments, scores of NumPy, paths) is left out of the
    dictionaries.

    Raises:
        DamagedFileError: the file is missing, damaged, would run code, or holds something else.
    """
    path = Path(path)
    content, memory = _from_zip(path) if refuse_other(path) == "zip" else _from_stream(path)
    if isinstance(content, Inert) and content.name.startswith("__torch__."):
        return {**_flat(content, path)}, memory
    if not isinstance(content, dict):
        kind = content.name if isinstance(content, Inert) else type(content).__name__
        raise DamagedFileError(f"{path} holds a {kind}, expected a dictionary of tensors. {_ADVICE}")
    if other := [key for key in content if not isinstance(key, str)]:
        raise DamagedFileError(f"{path} must hold tensors by name. It holds one under {str(other[0])[:40]}. {_ADVICE}")
    return _tidy(content, path, {}, 0), memory


def _from_zip(path: Path) -> tuple[Any, mmap.mmap]:
    """What torch has written since 1.6: a pickle, and each storage as a file beside it."""
    archive = Archive(path)
    pickles = [name for name in archive.members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        holds = "NumPy arrays, so its name must end in .npz" if _is_npz(archive) else f"{len(pickles)} files data.pkl"
        raise DamagedFileError(f"{path} is an archive with {holds}; a file of torch has one data.pkl. {_AGAIN}")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in archive.members and archive.read(f"{root}byteorder", 64) != b"little":
        raise DamagedFileError(f"{path} was written on a machine with the other byte order. {_ADVICE}")

    def place(key: str, dtype: torch.dtype, count: int) -> int:
        name = f"{root}data/{key}"
        if archive.member(name).size != count * dtype.itemsize:
            raise Broken(f"{name[:80]} has {archive.member(name).size} bytes, expected {count * dtype.itemsize}")
        return archive.stored(name).offset

    maker = TensorMaker(archive.memory, place)
    file = io.BytesIO(archive.read(pickles[0], PICKLE))
    machine = Machine(maker.functions, maker.storage)
    return _run(path, machine, file, f"{root}constants.pkl" in archive.members), archive.memory


def _from_stream(path: Path) -> tuple[Any, mmap.mmap]:
    """What torch wrote before 1.6: five pickles, and then each storage as a count and its numbers."""
    with path.open("rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    file = io.BytesIO(memory[:PICKLE])
    wanted: dict[str, tuple[torch.dtype, int]] = {}

    def note(key: str, dtype: torch.dtype, count: int) -> None:
        if wanted.setdefault(key, (dtype, count)) != (dtype, count):
            raise Broken(f"the storage {key[:40]} is described twice, differently")

    first = TensorMaker(memory, note)
    machine = Machine(first.functions, first.storage)
    if _run(path, machine, file) != MAGIC:
        raise DamagedFileError(f"{path} is a pickle, but not a weights file of torch. {_ADVICE}")
    if _run(path, machine, file) != PROTOCOL:
        raise DamagedFileError(f"{path} is of an unknown version of torch's files. {_ADVICE}")
    _run(path, machine, file)  # number sizes of the machine that wrote it
    begin = file.tell()
    _run(path, machine, file)  # the content, to learn which storages there are
    keys = _run(path, machine, file)
    offsets = _offsets(path, memory, file.tell(), keys, wanted)

    second = TensorMaker(memory, lambda key, dtype, count: offsets[key])
    file.seek(begin)
    return _run(path, Machine(second.functions, second.storage), file), memory


def _offsets(
    path: Path, memory: mmap.mmap, start: int, keys: Any, wanted: Mapping[str, tuple[torch.dtype, int]]
) -> dict[str, int]:
    """The first byte of every storage; they follow each other in the order of the keys."""
    offsets: dict[str, int] = {}
    if (
        not isinstance(keys, list)
        or len(keys) != len(wanted)
        or not all(isinstance(key, str) and key in wanted for key in keys)
    ):
        raise _not_whole(path, "its list of storages is not that of its tensors")
    for key in keys:
        dtype, count = wanted[key]
        if int.from_bytes(memory[start : start + 8], "little") != count:
            raise _not_whole(path, f"the storage {key[:40]} has another count than its tensors say")
        offsets[key] = start + 8
        start += 8 + count * dtype.itemsize
        if start > len(memory):
            raise _not_whole(path, f"the storage {key[:40]} goes beyond the end")
    return offsets


def _run(path: Path, machine: Machine, file: io.BytesIO, is_scripted: bool = False) -> Any:
    """One pickle's value; its forbidden names come first among the reasons to refuse it, even if it is also broken."""
    content, error = None, None
    try:
        content = machine.run(file)
    except (Broken, DamagedFileError) as raised:
        error = raised
    if wanted := refused(machine.names, is_scripted):
        more = f" and {len(wanted) - 50} more" if len(wanted) > 50 else ""
        raise DamagedFileError(
            f"{path} asks to run {', '.join(wanted[:50])}{more} when it is read, so it was not read. "
            "Save only the weights again, torch.save(model.state_dict(), path), where you trust the file."
        )
    if isinstance(error, Broken):
        raise _not_whole(path, str(error)) from error
    if error is not None:
        raise error
    return content


def _tidy(
    content: dict[Any, Any], path: Path, seen: dict[int, dict[Any, object] | None], depth: int
) -> dict[Any, object]:
    """The dictionary without inert values, those inside it too; one that contains itself is refused."""
    if id(content) in seen:
        if (known := seen[id(content)]) is None:
            raise _not_whole(path, "a dictionary contains itself")
        return known
    if depth > DEPTH:
        raise _not_whole(path, f"its dictionaries are nested deeper than {DEPTH}")
    seen[id(content)] = None
    tidy: dict[Any, object] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            tidy[key] = _tidy(value, path, seen, depth + 1)
        elif not isinstance(value, Inert):
            tidy[key] = value
    seen[id(content)] = tidy
    return tidy


def _flat(module: Inert, path: Path) -> dict[str, Tensor]:
    """Every tensor of a TorchScript module and of those inside it, by its full name."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    waiting, count = [("", module)], 0
    while waiting:
        prefix, module = waiting.pop()
        if id(module) in seen:
            raise _not_whole(path, f"the module {prefix[:80]} stands in it under two names")
        seen.add(id(module))
        state = module.state if isinstance(module.state, dict) else {}
        if (count := count + len(state)) > OPERATIONS:  # one large state can stand in many modules
            raise _not_whole(path, f"its modules have more than {OPERATIONS} parts")
        if any(not isinstance(name, str) or len(prefix) + len(name) > NAME for name in state):
            raise _not_whole(path, f"a part of the module {prefix[:80]} has no name of at most {NAME} letters")
        found.update({f"{prefix}{name}": value for name, value in state.items() if isinstance(value, Tensor)})
        inside = [(name, value) for name, value in state.items() if isinstance(value, Inert)]
        modules = [(f"{prefix}{name}.", value) for name, value in inside if value.name.startswith("__torch__.")]
        waiting.extend(reversed(modules))
    return found


def _is_npz(archive: Archive) -> bool:
    return bool(archive.members) and all(name.endswith(".npy") for name in archive.members)


def _not_whole(path: Path, reason: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is not a whole PyTorch weights file ({reason}). It is cut short, changed or of another kind: "
        "copy it again."
    )


_ADVICE = "Save the weights alone: torch.save(model.state_dict(), path)."
_AGAIN = "Copy it again from a source that you trust."
