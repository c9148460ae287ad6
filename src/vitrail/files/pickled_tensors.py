"""From what a pickle says of tensors to tensors: views of the file's own bytes, each place checked before use."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .pickle_machine import NAME, OPERATIONS, Broken, Function, Inert, Named
from .pickled_names import DTYPES, SCRIPTED, STORAGES

SHARED = 8
"""Bytes of all tensors together for every byte of the file; tied weights share their bytes."""
SLACK = 2**20
"""Bytes of tensors that are always allowed."""


class Storage(NamedTuple):
    """A run of numbers in the file."""

    dtype: torch.dtype
    numbers: int
    offset: int | None
    """Its first byte in the file; None while that is not known yet."""


Place = Callable[[str, torch.dtype, int], int | None]
"""(key, number format, count) of a storage to its first byte in the file."""


class TensorMaker:
    """The functions that a `Machine` may call, over the bytes of one file.

    Args:
        memory: the file, mapped so that writing to a tensor never reaches it.
        place: where a storage lies; raises Broken if there is none of that key and size.
    """

    def __init__(self, memory: mmap.mmap, place: Place):
        self._memory = memory
        self._place = place
        self._left = SHARED * len(memory) + SLACK
        self._entries = OPERATIONS
        self.functions: Mapping[str, Function] = {
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._untyped_tensor,
            "torch._utils._rebuild_parameter": _first,
            "torch._utils._rebuild_parameter_with_state": _first,
            "torch._tensor._rebuild_from_type_v2": self._of_type,
            "torch.Size": _first,
            "collections.OrderedDict": self._dictionary,
            "collections.defaultdict": lambda arguments: {},
            "collections.Counter": self._dictionary,
            **dict.fromkeys(SCRIPTED, _first),
        }

    def storage(self, arguments: tuple[Any, ...]) -> Storage:
        """The storage that torch's persistent id ("storage", kind, key, device, count) stands for.

        Raises:
            Broken: no such id, or the file has no such storage.
        """
        (found,) = arguments
        if not isinstance(found, tuple) or len(found) not in (5, 6) or found[0] != "storage":
            raise Broken("it refers to something outside itself that is no storage")
        _, kind, key, _, count, *view = found
        if not isinstance(kind, Named) or kind.name not in STORAGES:
            raise Broken("the kind of a storage is unknown")
        is_named = isinstance(key, str) and len(key) <= NAME
        if not is_named or not _is_count(count) or any(part is not None for part in view):
            raise Broken("a storage has no key and no count")
        dtype = STORAGES[kind.name]
        return Storage(dtype, count, self._place(key, dtype, count))

    def _tensor(self, arguments: tuple[Any, ...]) -> Tensor | None:
        if len(arguments) < 4 or not isinstance(arguments[0], Storage):
            raise Broken("a tensor is made of something that is no storage")
        return self._view(*arguments[:4])

    def _untyped_tensor(self, arguments: tuple[Any, ...]) -> Tensor | None:
        """A tensor whose storage is plain bytes, with its number format apart."""
        if len(arguments) < 7 or not isinstance(arguments[0], Storage) or not isinstance(arguments[6], Named):
            raise Broken("a tensor is made of something that is no storage")
        if (dtype := DTYPES.get(arguments[6].name)) is None:
            raise Broken("the number format of a tensor is unknown")
        storage = arguments[0]
        count = storage.numbers * storage.dtype.itemsize // dtype.itemsize
        return self._view(Storage(dtype, count, storage.offset), *arguments[1:4])

    def _of_type(self, arguments: tuple[Any, ...]) -> Any:
        """A tensor or parameter with attributes of its own, which are left behind."""
        if len(arguments) < 3 or not isinstance(arguments[0], Named) or not isinstance(arguments[2], tuple):
            raise Broken("a tensor is rebuilt by something that is no name")
        function = self.functions.get(arguments[0].name)
        return Inert(arguments[0].name) if function is None else function(arguments[2])

    def _view(self, storage: Storage, offset: Any, shape: Any, strides: Any) -> Tensor | None:
        if not (_is_count(offset) and _are_counts(shape) and _are_counts(strides)) or len(shape) != len(strides):
            raise Broken("the shape of a tensor is no list of counts")
        count = math.prod(shape)
        if not count and math.prod(max(length, 1) for length in shape) >= 2**60:
            raise Broken(f"no tensor can have the shape {list(shape)[:16]}")
        last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if count and (last >= storage.numbers or count > storage.numbers):
            raise Broken(f"a tensor of shape {list(shape)[:16]} goes beyond its storage of {storage.numbers} numbers")
        self._left -= count * storage.dtype.itemsize
        if self._left < 0:
            raise Broken(f"its tensors have more than {SHARED} times the bytes of the file")
        if storage.offset is None:
            return None
        if not count:
            return torch.empty(shape, dtype=storage.dtype)
        numbers = torch.frombuffer(self._memory, dtype=storage.dtype, count=storage.numbers, offset=storage.offset)
        return torch.as_strided(numbers, shape, strides, offset)

    def _dictionary(self, arguments: tuple[Any, ...]) -> dict[Any, Any]:
        """An ordered dictionary; the oldest pickles give its pairs in the call.

        All of them together are bounded: a pickle can ask for the same large one again and again.
        """
        if not arguments:
            return {}
        pairs = arguments[0]
        self._entries -= len(pairs) if isinstance(pairs, dict | list) else 0
        if self._entries < 0:
            raise Broken(f"its dictionaries have more than {OPERATIONS} entries")
        if isinstance(pairs, dict):
            return dict(pairs)
        if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise Broken("a dictionary is made of something that is no list of pairs")
        if not all(isinstance(pair[0], str) for pair in pairs):
            raise Broken("a dictionary has keys that are no texts")
        return dict(pairs)


def _first(arguments: tuple[Any, ...]) -> Any:
    if not arguments:
        raise Broken("a call lacks its argument")
    return arguments[0]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_counts(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) <= 64 and all(_is_count(number) for number in value)
