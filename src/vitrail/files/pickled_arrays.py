"""Data sets pickled as one dictionary of NumPy arrays, lists and texts, as CIFAR is; nothing in the file runs.

The file is read by `pickle_machine`, which calls nothing but the few functions below. A pickle that names anything
else is refused with the list of what it named. Arrays are made of the pickle's own bytes, so that together they are
never larger than the file.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import DamagedFileError
from .pickle_machine import Broken, Inert, Machine

Scalar = int | float | str | bytes | None
Value = np.ndarray | list[Scalar] | Scalar

NUMBERS: Mapping[str, np.dtype[Any]] = {"u1": np.dtype(np.uint8), "i8": np.dtype(np.int64)}
"""Number formats of arrays: pictures and labels."""
AXES = 8


def load_arrays(data: bytes, where: str) -> dict[str, Value]:
    """The dictionary that `data` pickles. Python 2's texts and bytes keys come out as text, letter for byte.

    Values are arrays of uint8 or int64, lists of numbers and texts, numbers and texts; bytes stay bytes.

    Args:
        where: what messages call the file.

    Raises:
        DamagedFileError: it is damaged, names anything but NumPy's arrays, or holds something else.
    """
    maker = _ArrayMaker(len(data))
    machine = Machine(maker.functions, _nothing_outside)
    broken: Broken | None = None
    content: Any = None
    try:
        content = machine.run(io.BytesIO(data))
    except Broken as error:
        broken = error
    if other := sorted(set(machine.names) - ALLOWED):
        names = ", ".join(name[:100] if name.isprintable() else ascii(name)[:100] for name in other[:8])
        raise DamagedFileError(
            f"{where} is a pickle that asks to run {names}. Pictures need nothing of that, so it was not read. "
            "Fetch the file again from its publisher."
        )
    if broken is not None:
        raise DamagedFileError(f"{where} is not a whole pickle ({broken}). {_AGAIN}") from broken
    try:
        return _dictionary(content, maker)
    except Broken as error:
        raise DamagedFileError(f"{where} is no pickled set of pictures ({error}). {_AGAIN}") from error


_AGAIN = "It is cut short, changed, or another file: fetch it again."
_MODULES = ("numpy.core", "numpy._core")  # before and since NumPy 2
_RECONSTRUCT = frozenset(f"{module}.multiarray._reconstruct" for module in _MODULES)
_FROM_BUFFER = frozenset(f"{module}.numeric._frombuffer" for module in _MODULES)
_DTYPE = "numpy.dtype"
_ENCODE = "_codecs.encode"
_BYTES = frozenset({"__builtin__.bytes", "builtins.bytes"})
ALLOWED = frozenset({*_RECONSTRUCT, *_FROM_BUFFER, *_BYTES, "numpy.ndarray", _DTYPE, _ENCODE})
"""All names that a pickle of arrays needs, of any protocol."""


class _ArrayMaker:
    """The functions that the machine may call, and arrays from what they noted.

    Args:
        size: bytes of the pickle; all arrays, and all texts that become bytes, have at most as many.
    """

    def __init__(self, size: int):
        self._texts = size
        self._arrays = size
        self.functions: Mapping[str, Callable[[tuple[Any, ...]], Any]] = {
            **{name: lambda arguments: Inert("array") for name in _RECONSTRUCT},  # NumPy gives it its content later
            **dict.fromkeys(_FROM_BUFFER, _from_buffer),
            _DTYPE: lambda arguments: Inert(_DTYPE, content=list(arguments)),
            _ENCODE: self._encoded,
            **dict.fromkeys(_BYTES, _empty),
        }

    def array(self, found: Inert) -> np.ndarray:
        """The array behind one (version, shape, dtype, by columns, bytes)."""
        state = found.state
        if not isinstance(state, tuple) or len(state) != 5:
            raise Broken("an array has no content")
        _, shape, kind, by_columns, raw = state
        dtype = _number(kind)
        if not isinstance(shape, tuple) or len(shape) > AXES or not all(map(_is_count, shape)):
            raise Broken("the shape of an array is no list of counts")
        if math.prod(max(length, 1) for length in shape) >= 2**60:
            raise Broken(f"no array can have the shape {list(shape)}")
        if not isinstance(raw, str | bytes | bytearray):
            raise Broken("the content of an array is no run of bytes")
        if len(raw) != math.prod(shape) * dtype.itemsize:
            raise Broken(f"an array of shape {list(shape)} has {len(raw)} bytes")
        self._arrays -= len(raw)
        if self._arrays < 0:
            raise Broken("its arrays have more bytes than the file")
        flat = np.frombuffer(bytearray(_latin(raw)), dtype)
        array = flat.reshape(shape, order="F" if by_columns is True or by_columns == 1 else "C")
        return array if dtype.isnative else array.astype(dtype.newbyteorder("="))

    def _encoded(self, arguments: tuple[Any, ...]) -> bytes:
        """Bytes as Python 3 writes them into the old protocols: a text and the word latin1."""
        if len(arguments) != 2 or not isinstance(arguments[0], str) or arguments[1] not in ("latin1", "latin-1"):
            raise Broken("it encodes something that is no text")
        self._texts -= len(arguments[0])
        if self._texts < 0:
            raise Broken("its bytes are more than those of the file")
        return bytes(_latin(arguments[0]))


def _from_buffer(arguments: tuple[Any, ...]) -> Inert:
    """An array of protocol 5: (bytes, dtype, shape, order)."""
    if len(arguments) != 4:
        raise Broken("an array is made of something else than bytes, dtype, shape and order")
    raw, dtype, shape, order = arguments
    return Inert("array", state=(1, shape, dtype, order == "F", raw))


def _empty(arguments: tuple[Any, ...]) -> bytes:
    """No bytes at all, as Python 3 writes them into the old protocols."""
    if arguments:
        raise Broken("it makes bytes of something else than a text")
    return b""


def _nothing_outside(arguments: tuple[Any, ...]) -> Any:
    raise Broken("it refers to something outside itself")


def _dictionary(content: Any, maker: _ArrayMaker) -> dict[str, Value]:
    if not isinstance(content, dict):
        raise Broken(f"it holds a {_kind(content)}, expected a dictionary")
    found: dict[str, Value] = {}
    for key, value in content.items():
        if not isinstance(key, str | bytes):
            raise Broken("a key is no text")
        name = key.decode("latin-1") if isinstance(key, bytes) else key
        found[name] = _value(value, name[:40], maker)
    return found


def _value(value: Any, name: str, maker: _ArrayMaker) -> Value:
    if isinstance(value, Inert) and value.name == "array":
        return maker.array(value)
    if isinstance(value, list | tuple):
        if other := [_kind(each) for each in value if not _is_scalar(each)]:
            raise Broken(f"the list {name!r} holds a {other[0]}, expected numbers or texts")
        return list(value)
    if not _is_scalar(value):
        raise Broken(f"{name!r} is a {_kind(value)}, expected an array, a list, a number or a text")
    return value


def _is_scalar(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**63
    return value is None or isinstance(value, float | str | bytes)


def _kind(value: Any) -> str:
    return value.name if isinstance(value, Inert) else type(value).__name__


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _number(kind: Any) -> np.dtype:
    """The number format of a pickled dtype: its letters, then its byte order among its state."""
    if not isinstance(kind, Inert) or kind.name != _DTYPE or not kind.content:
        raise Broken("an array has no number format")
    letters = kind.content[0]
    text = letters.decode("latin-1") if isinstance(letters, bytes) else letters
    number = NUMBERS.get(text.lstrip("<>|=")) if isinstance(text, str) else None
    if number is None:
        raise Broken(f"an array holds values of the kind {str(text)[:20]!r}; {', '.join(NUMBERS)} are read")
    order = kind.state[1] if isinstance(kind.state, tuple) and len(kind.state) > 1 else "<"
    return number.newbyteorder(">") if order in (">", b">") else number


def _latin(raw: str | bytes | bytearray) -> bytes | bytearray:
    """Python 2's texts are bytes; pickletools gives them as letters of Latin-1."""
    try:
        return raw.encode("latin-1") if isinstance(raw, str) else raw
    except UnicodeEncodeError as error:
        raise Broken("the content of an array is a text") from error
