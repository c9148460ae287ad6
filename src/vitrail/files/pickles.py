"""Safe reading of pickled weights and pickled NumPy datasets: tensors, arrays and plain values; no code is run.

Unpickling a hostile file can run any code. Here `pickle_vm` interprets the pickle and calls only the few functions
below; a file that names anything else is refused with the list of those names. There is no less strict mode.
"""

from __future__ import annotations

import io
import math
import mmap
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DamagedFileError
from ..formatting import format_count
from .pickle_vm import (
    MAX_NAME_LENGTH,
    MAX_OPERATIONS,
    BrokenPickleError,
    InertObject,
    PickledName,
    PickleFunction,
    PickleMachine,
)
from .sniff import require_weights_kind
from .zip_archive import ZipArchive

MAX_PICKLE_BYTES = 16 * 2**20
"""Longest pickle that is read; the tensors' data are outside of it."""
MAX_DICT_DEPTH = 64
"""Deepest nesting of dictionaries; training scripts have about four."""
MAX_TENSOR_NAME = 512
"""Longest full name of a tensor in a TorchScript archive."""
TORCH_MAGIC, TORCH_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
"""The first numbers of a file that torch wrote before 1.6."""


def open_state_dict(path: Path) -> tuple[dict[str, object], mmap.mmap]:
    """Read a `.pt`, `.pth`, `.bin` or `.ckpt` file with a (nested) dictionary of tensors, and return the mapped file.

    Tensors are views of the file, so that data are read on access; writing to them does not change it. The tensors of
    a TorchScript archive are named by its modules. Other objects of a training (arguments, NumPy scores, paths) are
    left out of the dictionaries.

    Raises:
        DamagedFileError: the file is missing, damaged, would run code, or holds something else.
    """
    path = Path(path)
    content, memory = _read_zip(path) if require_weights_kind(path) == "zip" else _read_legacy(path)
    if isinstance(content, InertObject) and content.name.startswith("__torch__."):
        return {**_flatten_torchscript(content, path)}, memory
    if not isinstance(content, dict):
        kind = content.name if isinstance(content, InertObject) else type(content).__name__
        raise DamagedFileError(f"{path} holds a {kind}, expected a dictionary of tensors. {_ADVICE}")
    if other := [key for key in content if not isinstance(key, str)]:
        raise DamagedFileError(f"{path} must hold tensors by name. It holds one under {str(other[0])[:40]}. {_ADVICE}")
    return _drop_inert_values(content, path, {}, 0), memory


def _read_zip(path: Path) -> tuple[Any, mmap.mmap]:
    """The format of torch since 1.6: an archive with a pickle and a file for each storage."""
    archive = ZipArchive(path)
    pickles = [name for name in archive.members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        is_npz = bool(archive.members) and all(name.endswith(".npy") for name in archive.members)
        holds = (
            "NumPy arrays, so its name must end in .npz" if is_npz else f"{format_count(len(pickles), 'file')} data.pkl"
        )
        raise DamagedFileError(
            f"{path} is an archive with {holds}; a file of torch has one data.pkl. Copy it again from a source that "
            "you trust."
        )
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in archive.members and archive.read(f"{root}byteorder", 64) != b"little":
        raise DamagedFileError(f"{path} was written on a machine with the other byte order. {_ADVICE}")

    def locate(key: str, dtype: torch.dtype, count: int) -> int:
        name = f"{root}data/{key}"
        if archive.member(name).size != count * dtype.itemsize:
            raise BrokenPickleError(
                f"{name[:80]} has {archive.member(name).size} bytes, expected {count * dtype.itemsize}"
            )
        return archive.verify_uncompressed(name).offset

    file = io.BytesIO(archive.read(pickles[0], MAX_PICKLE_BYTES))
    is_scripted = f"{root}constants.pkl" in archive.members
    return _run_pickle(path, TensorMaker(archive.memory, locate, is_scripted), file), archive.memory


def _read_legacy(path: Path) -> tuple[Any, mmap.mmap]:
    """The format of torch before 1.6: five pickles, then each storage as a count and its data."""
    with path.open("rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    file = io.BytesIO(memory[:MAX_PICKLE_BYTES])
    storages: dict[str, tuple[torch.dtype, int]] = {}

    def record(key: str, dtype: torch.dtype, count: int) -> None:
        if storages.setdefault(key, (dtype, count)) != (dtype, count):
            raise BrokenPickleError(f"the storage {key[:40]} is described twice, differently")

    recorder = TensorMaker(memory, record)
    if _run_pickle(path, recorder, file) != TORCH_MAGIC:
        raise DamagedFileError(f"{path} is a pickle, but not a weights file of torch. {_ADVICE}")
    if _run_pickle(path, recorder, file) != TORCH_PROTOCOL:
        raise DamagedFileError(f"{path} is of an unknown version of torch's files. {_ADVICE}")
    _run_pickle(path, recorder, file)  # sizes of C types on the machine that wrote it
    begin = file.tell()
    _run_pickle(path, recorder, file)  # the content, to collect its storages
    keys = _run_pickle(path, recorder, file)
    offsets = _storage_offsets(path, memory, file.tell(), keys, storages)
    file.seek(begin)
    return _run_pickle(path, TensorMaker(memory, lambda key, dtype, count: offsets[key]), file), memory


def _storage_offsets(
    path: Path, memory: mmap.mmap, start: int, keys: Any, storages: Mapping[str, tuple[torch.dtype, int]]
) -> dict[str, int]:
    """The first byte of every storage; they are stored in the order of the keys."""
    offsets: dict[str, int] = {}
    if (
        not isinstance(keys, list)
        or len(keys) != len(storages)
        or not all(isinstance(key, str) and key in storages for key in keys)
    ):
        raise _damaged_error(path, "its list of storages is not that of its tensors")
    for key in keys:
        dtype, count = storages[key]
        if int.from_bytes(memory[start : start + 8], "little") != count:
            raise _damaged_error(path, f"the storage {key[:40]} has another count than its tensors say")
        offsets[key] = start + 8
        start += 8 + count * dtype.itemsize
        if start > len(memory):
            raise _damaged_error(path, f"the storage {key[:40]} goes beyond the end")
    return offsets


def _run_pickle(path: Path, maker: TensorMaker, file: io.BytesIO) -> Any:
    """The value of a pickle; forbidden names are reported even if the pickle is also broken."""
    machine = PickleMachine(maker.functions, maker.make_storage)
    content, error = None, None
    try:
        content = machine.run(file)
    except (BrokenPickleError, DamagedFileError) as raised:
        error = raised
    allowed = {*maker.functions, *STORAGE_TYPES, *PICKLED_DTYPES, *HARMLESS_NAMES}
    if maker.is_scripted:
        allowed |= {name for name in machine.names if name.startswith("__torch__.")}
    if forbidden := _format_names(machine.names.keys() - allowed):
        more = f" and {len(forbidden) - 50} more" if len(forbidden) > 50 else ""
        raise DamagedFileError(
            f"{path} asks to run {', '.join(forbidden[:50])}{more} when it is read, so it was not read. "
            + next((advice for word, advice in _ADVICE_BY_LIBRARY if any(map(word.match, forbidden))), _SAVE_AGAIN)
        )
    if isinstance(error, BrokenPickleError):
        raise _damaged_error(path, str(error)) from error
    if error is not None:
        raise error
    return content


def _drop_inert_values(
    content: dict[Any, Any], path: Path, seen: dict[int, dict[Any, object] | None], depth: int
) -> dict[Any, object]:
    """A dictionary without inert values, recursively; one that contains itself is refused."""
    if id(content) in seen:
        if (known := seen[id(content)]) is None:
            raise _damaged_error(path, "a dictionary contains itself")
        return known
    if depth > MAX_DICT_DEPTH:
        raise _damaged_error(path, f"its dictionaries are nested deeper than {MAX_DICT_DEPTH}")
    seen[id(content)] = None
    tidy: dict[Any, object] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            tidy[key] = _drop_inert_values(value, path, seen, depth + 1)
        elif not isinstance(value, InertObject):
            tidy[key] = value
    seen[id(content)] = tidy
    return tidy


def _flatten_torchscript(module: InertObject, path: Path) -> dict[str, Tensor]:
    """Every tensor of a TorchScript module and its submodules by full name."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    waiting, count = [("", module)], 0
    while waiting:
        prefix, module = waiting.pop()
        if id(module) in seen:
            raise _damaged_error(path, f"the module {prefix[:80]} stands in it under two names")
        seen.add(id(module))
        state = module.state if isinstance(module.state, dict) else {}
        if (count := count + len(state)) > MAX_OPERATIONS:  # many modules can share one large state
            raise _damaged_error(path, f"its modules have more than {MAX_OPERATIONS} parts")
        if any(not isinstance(name, str) or len(prefix) + len(name) > MAX_TENSOR_NAME for name in state):
            raise _damaged_error(
                path, f"a part of the module {prefix[:80]} has no name of at most {MAX_TENSOR_NAME} letters"
            )
        tensors.update({f"{prefix}{name}": value for name, value in state.items() if isinstance(value, Tensor)})
        inside = [(name, value) for name, value in state.items() if isinstance(value, InertObject)]
        modules = [(f"{prefix}{name}.", value) for name, value in inside if value.name.startswith("__torch__.")]
        waiting.extend(reversed(modules))
    return tensors


def _damaged_error(path: Path, reason: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is not a whole PyTorch weights file ({reason}). It is cut short, changed or of another kind: "
        "copy it again."
    )


_ADVICE = "Save the weights alone: torch.save(model.state_dict(), path)."
_SAVE_AGAIN = "Save only the weights again, torch.save(model.state_dict(), path), where you trust the file."
DEEPSPEED_ADVICE = (
    "It is a part of a DeepSpeed checkpoint: python zero_to_fp32.py FOLDER OUT, with the script that lies in the "
    "folder, makes a weights file of all parts."
)
SHARD_ADVICE = "It is a part of a sharded model: save a full state dict (FSDP: StateDictType.FULL_STATE_DICT)."
_FASTAI_ADVICE = (
    "It is a Learner that fastai has exported: save its weights, torch.save(learn.model.state_dict(), path), where you "
    "trust the file."
)
_ADVICE_BY_LIBRARY = (
    (re.compile(r"deepspeed\b"), DEEPSPEED_ADVICE),
    (re.compile(r"fastai\b|fastcore\b"), _FASTAI_ADVICE),
    (re.compile(r"torch\.distributed\b"), SHARD_ADVICE),
)
"""Pattern of a name that would be run, and what to do with such a file."""


# -- Datasets pickled as one dictionary of NumPy arrays, lists and texts, as CIFAR is. Arrays are made of the pickle's
# own bytes, so that together they are never larger than the file.

PickledScalar = int | float | str | bytes | None
PickledValue = np.ndarray | list[PickledScalar] | PickledScalar

ARRAY_DTYPES: Mapping[str, np.dtype[Any]] = {"u1": np.dtype(np.uint8), "i8": np.dtype(np.int64)}
"""Dtypes of images and labels."""
MAX_ARRAY_AXES = 8


def load_pickled_arrays(data: bytes, where: str) -> dict[str, PickledValue]:
    """Read a pickled dictionary of arrays of uint8 or int64, lists of numbers and texts, numbers and texts.

    Strings of Python 2 and bytes keys become text (Latin-1); bytes values stay bytes.

    Args:
        where: the name of the file in messages.

    Raises:
        DamagedFileError: it is damaged, names anything but NumPy's arrays, or holds something else.
    """
    maker = _ArrayMaker(len(data))
    machine = PickleMachine(maker.functions, _refuse_persistent_id)
    content, broken = None, None
    try:
        content = machine.run(io.BytesIO(data))
    except BrokenPickleError as error:
        broken = error
    if forbidden := _format_names(machine.names.keys() - maker.functions.keys() - {"numpy.ndarray"}):
        raise DamagedFileError(
            f"{where} is a pickle that asks to run {', '.join(forbidden[:8])}. Pictures need nothing of that, so it "
            "was not read. Fetch the file again from its publisher."
        )
    if broken is not None:
        raise DamagedFileError(f"{where} is not a whole pickle ({broken}). {_FETCH_AGAIN}") from broken
    try:
        return _convert_dictionary(content, maker)
    except BrokenPickleError as error:
        raise DamagedFileError(f"{where} is no pickled set of pictures ({error}). {_FETCH_AGAIN}") from error


_FETCH_AGAIN = "It is cut short, changed, or another file: fetch it again."
_MODULES = ("numpy.core", "numpy._core")  # before and since NumPy 2
_RECONSTRUCT = frozenset(f"{module}.multiarray._reconstruct" for module in _MODULES)
_FROM_BUFFER = frozenset(f"{module}.numeric._frombuffer" for module in _MODULES)
_DTYPE = "numpy.dtype"
_ENCODE = "_codecs.encode"
_BYTES = frozenset({"__builtin__.bytes", "builtins.bytes"})


class _ArrayMaker:
    """The functions that the machine may call, and arrays from their results.

    Args:
        size: bytes of the pickle, an upper bound for all arrays, and for all texts that become bytes.
    """

    def __init__(self, size: int):
        self._text_budget = size
        self._array_budget = size
        self.functions: Mapping[str, Callable[[tuple[Any, ...]], Any]] = {
            **dict.fromkeys(_RECONSTRUCT, lambda arguments: InertObject("array")),  # its content follows as a state
            **dict.fromkeys(_FROM_BUFFER, _from_buffer),
            _DTYPE: lambda arguments: InertObject(_DTYPE, content=list(arguments)),
            _ENCODE: self._encode_latin1,
            **dict.fromkeys(_BYTES, _empty_bytes),
        }

    def make_array(self, value: InertObject) -> np.ndarray:
        """An array from its pickled state (version, shape, dtype, Fortran order, bytes)."""
        state = value.state
        if not isinstance(state, tuple) or len(state) != 5:
            raise BrokenPickleError("an array has no content")
        _, shape, kind, by_columns, raw = state
        dtype = _parse_dtype(kind)
        if not isinstance(shape, tuple) or len(shape) > MAX_ARRAY_AXES or not all(map(_is_count, shape)):
            raise BrokenPickleError("the shape of an array is no list of counts")
        if math.prod(max(length, 1) for length in shape) >= 2**60:
            raise BrokenPickleError(f"no array can have the shape {list(shape)}")
        if not isinstance(raw, str | bytes | bytearray):
            raise BrokenPickleError("the content of an array is no run of bytes")
        if len(raw) != math.prod(shape) * dtype.itemsize:
            raise BrokenPickleError(f"an array of shape {list(shape)} has {len(raw)} bytes")
        self._array_budget -= len(raw)
        if self._array_budget < 0:
            raise BrokenPickleError("its arrays have more bytes than the file")
        flat = np.frombuffer(bytearray(_encode_latin(raw)), dtype)
        array = flat.reshape(shape, order="F" if by_columns is True or by_columns == 1 else "C")
        return array if dtype.isnative else array.astype(dtype.newbyteorder("="))

    def _encode_latin1(self, arguments: tuple[Any, ...]) -> bytes:
        """Bytes as Python 3 pickles them in protocols 0 to 2: a text and "latin1"."""
        if len(arguments) != 2 or not isinstance(arguments[0], str) or arguments[1] not in ("latin1", "latin-1"):
            raise BrokenPickleError("it encodes something that is no text")
        self._text_budget -= len(arguments[0])
        if self._text_budget < 0:
            raise BrokenPickleError("its bytes are more than those of the file")
        return bytes(_encode_latin(arguments[0]))


def _from_buffer(arguments: tuple[Any, ...]) -> InertObject:
    """An array of protocol 5: (bytes, dtype, shape, order)."""
    if len(arguments) != 4:
        raise BrokenPickleError("an array is made of something else than bytes, dtype, shape and order")
    raw, dtype, shape, order = arguments
    return InertObject("array", state=(1, shape, dtype, order == "F", raw))


def _empty_bytes(arguments: tuple[Any, ...]) -> bytes:
    """Empty bytes as Python 3 pickles them in protocols 0 to 2."""
    if arguments:
        raise BrokenPickleError("it makes bytes of something else than a text")
    return b""


def _refuse_persistent_id(arguments: tuple[Any, ...]) -> Any:
    raise BrokenPickleError("it refers to something outside itself")


def _convert_dictionary(content: Any, maker: _ArrayMaker) -> dict[str, PickledValue]:
    if not isinstance(content, dict):
        raise BrokenPickleError(f"it holds a {_type_name(content)}, expected a dictionary")
    values: dict[str, PickledValue] = {}
    for key, value in content.items():
        if not isinstance(key, str | bytes):
            raise BrokenPickleError("a key is no text")
        name = key.decode("latin-1") if isinstance(key, bytes) else key
        values[name] = _convert_value(value, name[:40], maker)
    return values


def _convert_value(value: Any, name: str, maker: _ArrayMaker) -> PickledValue:
    if isinstance(value, InertObject) and value.name == "array":
        return maker.make_array(value)
    if isinstance(value, list | tuple):
        if other := [_type_name(each) for each in value if not _is_scalar(each)]:
            raise BrokenPickleError(f"the list {name!r} holds a {other[0]}, expected numbers or texts")
        return list(value)
    if not _is_scalar(value):
        raise BrokenPickleError(f"{name!r} is a {_type_name(value)}, expected an array, a list, a number or a text")
    return value


def _is_scalar(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**63
    return value is None or isinstance(value, float | str | bytes)


def _type_name(value: Any) -> str:
    return value.name if isinstance(value, InertObject) else type(value).__name__


def _parse_dtype(kind: Any) -> np.dtype:
    """The dtype of a pickled one: its letters are the argument, its byte order is in the state."""
    if not isinstance(kind, InertObject) or kind.name != _DTYPE or not kind.content:
        raise BrokenPickleError("an array has no number format")
    letters = kind.content[0]
    text = letters.decode("latin-1") if isinstance(letters, bytes) else letters
    number = ARRAY_DTYPES.get(text.lstrip("<>|=")) if isinstance(text, str) else None
    if number is None:
        raise BrokenPickleError(
            f"an array holds values of the kind {str(text)[:20]!r}; {', '.join(ARRAY_DTYPES)} are read"
        )
    order = kind.state[1] if isinstance(kind.state, tuple) and len(kind.state) > 1 else "<"
    return number.newbyteorder(">") if order in (">", b">") else number


def _encode_latin(raw: str | bytes | bytearray) -> bytes | bytearray:
    """The bytes of a Python 2 string, which pickletools decodes as Latin-1."""
    try:
        return raw.encode("latin-1") if isinstance(raw, str) else raw
    except UnicodeEncodeError as error:
        raise BrokenPickleError("the content of an array is a text") from error


# -- Tensors as views of the file's own bytes, with every range checked before use.

MAX_SHARING = 8
"""Largest ratio of the bytes of all tensors to those of the file; tied weights share their bytes."""
TENSOR_SLACK_BYTES = 2**20
"""Bytes of tensors that are always allowed."""


class PickledStorage(NamedTuple):
    """A torch storage in the file."""

    dtype: torch.dtype
    numel: int
    offset: int | None
    """Its first byte in the file; None if not known yet."""


class TensorMaker:
    """The functions that a `PickleMachine` may call, over the bytes of one file.

    Args:
        memory: the file, mapped copy-on-write.
        locate: the first byte of a storage by key, dtype and count; raises BrokenPickleError if there is none.
        is_scripted: the file is a TorchScript archive.
    """

    def __init__(
        self, memory: mmap.mmap, locate: Callable[[str, torch.dtype, int], int | None], is_scripted: bool = False
    ):
        self.is_scripted = is_scripted
        self._memory = memory
        self._locate = locate
        self._byte_budget = MAX_SHARING * len(memory) + TENSOR_SLACK_BYTES
        self._entry_budget = MAX_OPERATIONS
        self.functions: Mapping[str, PickleFunction] = {
            "torch._utils._rebuild_tensor": self._make_tensor,
            "torch._utils._rebuild_tensor_v2": self._make_tensor,
            "torch._utils._rebuild_tensor_v3": self._make_untyped_tensor,
            "torch._utils._rebuild_parameter": _first_argument,
            "torch._utils._rebuild_parameter_with_state": _first_argument,
            "torch._tensor._rebuild_from_type_v2": self._rebuild_from_type,
            "torch.Size": _first_argument,
            "collections.OrderedDict": self._make_dictionary,
            "collections.defaultdict": lambda arguments: {},
            "collections.Counter": self._make_dictionary,
            **dict.fromkeys(TORCHSCRIPT_NAMES if is_scripted else (), _first_argument),
        }

    def make_storage(self, arguments: tuple[Any, ...]) -> PickledStorage:
        """The storage of torch's persistent id ("storage", kind, key, device, count).

        Raises:
            BrokenPickleError: no such id, or the file has no such storage.
        """
        (identifier,) = arguments
        if not isinstance(identifier, tuple) or len(identifier) not in (5, 6) or identifier[0] != "storage":
            raise BrokenPickleError("it refers to something outside itself that is no storage")
        _, kind, key, _, count, *view = identifier
        if not isinstance(kind, PickledName) or kind.name not in STORAGE_TYPES:
            raise BrokenPickleError("the kind of a storage is unknown")
        is_named = isinstance(key, str) and len(key) <= MAX_NAME_LENGTH
        if not is_named or not _is_count(count) or any(part is not None for part in view):
            raise BrokenPickleError("a storage has no key and no count")
        dtype = STORAGE_TYPES[kind.name]
        return PickledStorage(dtype, count, self._locate(key, dtype, count))

    def _make_tensor(self, arguments: tuple[Any, ...]) -> Tensor | None:
        if len(arguments) < 4 or not isinstance(arguments[0], PickledStorage):
            raise BrokenPickleError("a tensor is made of something that is no storage")
        return self._make_view(*arguments[:4])

    def _make_untyped_tensor(self, arguments: tuple[Any, ...]) -> Tensor | None:
        """A tensor of an untyped storage, with its dtype as an argument."""
        if (
            len(arguments) < 7
            or not isinstance(arguments[0], PickledStorage)
            or not isinstance(arguments[6], PickledName)
        ):
            raise BrokenPickleError("a tensor is made of something that is no storage")
        if (dtype := PICKLED_DTYPES.get(arguments[6].name)) is None:
            raise BrokenPickleError("the number format of a tensor is unknown")
        storage = arguments[0]
        count = storage.numel * storage.dtype.itemsize // dtype.itemsize
        return self._make_view(PickledStorage(dtype, count, storage.offset), *arguments[1:4])

    def _rebuild_from_type(self, arguments: tuple[Any, ...]) -> Any:
        """A tensor or parameter with further attributes, which are dropped."""
        if len(arguments) < 3 or not isinstance(arguments[0], PickledName) or not isinstance(arguments[2], tuple):
            raise BrokenPickleError("a tensor is rebuilt by something that is no name")
        function = self.functions.get(arguments[0].name)
        return InertObject(arguments[0].name) if function is None else function(arguments[2])

    def _make_view(self, storage: PickledStorage, offset: Any, shape: Any, strides: Any) -> Tensor | None:
        if not (_is_count(offset) and _are_counts(shape) and _are_counts(strides)) or len(shape) != len(strides):
            raise BrokenPickleError("the shape of a tensor is no list of counts")
        count = math.prod(shape)
        if not count and math.prod(max(length, 1) for length in shape) >= 2**60:
            raise BrokenPickleError(f"no tensor can have the shape {list(shape)[:16]}")
        last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if count and (last >= storage.numel or count > storage.numel):
            raise BrokenPickleError(
                f"a tensor of shape {list(shape)[:16]} goes beyond its storage of size {storage.numel}"
            )
        self._byte_budget -= count * storage.dtype.itemsize
        if self._byte_budget < 0:
            raise BrokenPickleError(f"its tensors have more than {MAX_SHARING} times the bytes of the file")
        if storage.offset is None:
            return None
        if not count:
            return torch.empty(shape, dtype=storage.dtype)
        numbers = torch.frombuffer(self._memory, dtype=storage.dtype, count=storage.numel, offset=storage.offset)
        return torch.as_strided(numbers, shape, strides, offset)

    def _make_dictionary(self, arguments: tuple[Any, ...]) -> dict[Any, Any]:
        """An ordered dictionary, in old pickles with its pairs as an argument."""
        if not arguments:
            return {}
        pairs = arguments[0]
        self._entry_budget -= len(pairs) if isinstance(pairs, dict | list) else 0  # a pickle can copy one many times
        if self._entry_budget < 0:
            raise BrokenPickleError(f"its dictionaries have more than {MAX_OPERATIONS} entries")
        if isinstance(pairs, dict):
            return dict(pairs)
        if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise BrokenPickleError("a dictionary is made of something that is no list of pairs")
        if not all(isinstance(pair[0], str) for pair in pairs):
            raise BrokenPickleError("a dictionary has keys that are no texts")
        return dict(pairs)


def _first_argument(arguments: tuple[Any, ...]) -> Any:
    if not arguments:
        raise BrokenPickleError("a call lacks its argument")
    return arguments[0]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_counts(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) <= 64 and all(_is_count(number) for number in value)


# -- Allowed names beside the functions of `TensorMaker`; HARMLESS_NAMES become inert objects.

_STORAGE_DTYPES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
STORAGE_TYPES: Mapping[str, torch.dtype] = {
    **{f"torch.{word}Storage": dtype for word, dtype in _STORAGE_DTYPES.items()},
    **{f"torch.cuda.{word}Storage": dtype for word, dtype in _STORAGE_DTYPES.items()},
    "torch.storage.UntypedStorage": torch.uint8,
}
"""The dtype of each storage class."""
PICKLED_DTYPES: Mapping[str, torch.dtype] = {
    str(dtype): dtype
    for dtype in (
        *_STORAGE_DTYPES.values(),
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
    )
}
"""Dtypes by their pickled names."""

_BUILTIN_NAMES = (
    *("bytearray", "complex", "dict", "float", "frozenset", "int", "list", "long", "object", "range", "set"),
    *("slice", "str", "tuple"),
)
_EXTRA_NAMES: Mapping[str, tuple[str, ...]] = {
    "torch": ("Tensor", "device"),
    "torch.nn.parameter": ("Parameter",),
    "__builtin__": _BUILTIN_NAMES,
    "builtins": _BUILTIN_NAMES,
    "_codecs": ("encode",),
    "copy_reg": ("_reconstructor",),
    "copyreg": ("_reconstructor",),
    "argparse": ("Namespace",),
    "types": ("SimpleNamespace",),
    "typing": ("Any",),
    "collections": ("deque",),
    "datetime": ("date", "datetime", "timedelta", "timezone"),
    "pathlib": ("Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath"),
    "pathlib._local": ("Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath"),
    "numpy": ("dtype", "ndarray"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy.core.numeric": ("_frombuffer",),
    "numpy._core.numeric": ("_frombuffer",),
    "numpy.dtypes": ("Float32DType", "Float64DType", "Int64DType"),
    "omegaconf.base": ("ContainerMetadata", "Metadata"),
    "omegaconf.dictconfig": ("DictConfig",),
    "omegaconf.listconfig": ("ListConfig",),
    "omegaconf.nodes": ("AnyNode", "BooleanNode", "FloatNode", "IntegerNode", "StringNode"),
    "easydict": ("EasyDict",),
    "yacs.config": ("CfgNode",),
    "fvcore.common.config": ("CfgNode",),
    "ml_collections.config_dict.config_dict": ("ConfigDict",),
    "lightning_fabric.utilities.data": ("AttributeDict",),
    "lightning.fabric.utilities.data": ("AttributeDict",),
    "pytorch_lightning.utilities.parsing": ("AttributeDict",),
    "pytorch_lightning.callbacks.model_checkpoint": ("ModelCheckpoint",),
    "mmengine.logging.history_buffer": ("HistoryBuffer",),
}
HARMLESS_NAMES = frozenset(f"{module}.{name}" for module, names in _EXTRA_NAMES.items() for name in names)
"""Names of other objects in published files: classes of tensors, a training's arguments, scores, paths and dates."""
TORCHSCRIPT_NAMES = tuple(
    f"torch.jit._pickle.{name}"
    for name in ("build_intlist", "build_tensorlist", "build_doublelist", "build_boollist", "restore_type_tag")
)
"""Typed lists of TorchScript archives, whose modules are named `__torch__.` and so on."""


def _format_names(names: Iterable[str]) -> list[str]:
    """Names from a pickle sorted, abbreviated and safe to print."""
    return [name[:100] if name.isprintable() else ascii(name)[:100] for name in sorted(names)]
