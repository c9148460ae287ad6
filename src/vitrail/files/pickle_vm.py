"""A safe pickle interpreter: it makes plain values only, and imports or calls nothing that a pickle names.

Pickle is a small stack language, and Python's own reader imports and calls what a file requests. This one interprets
the stack, but calls only functions of a short table given by the caller; any other callee becomes an `InertObject`.
All protocols, 0 to 5. Opcodes are decoded by the standard library's `pickletools`, which runs nothing.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_OPERATIONS = 500_000
"""Steps of the longest pickle that is read; a ViT with its optimizer takes about 30,000."""
MAX_NAME_LENGTH = 256
"""Letters of the longest name of a class or function; a pickle can join two long texts again and again."""


@dataclass(frozen=True)
class PickledName:
    """A class or function that a pickle names; only the name is kept."""

    name: str


@dataclass
class InertObject:
    """The result of a call that was not made: the callee's name, the state and the items."""

    name: str
    state: Any = None
    content: list[Any] = field(default_factory=list)


class BrokenPickleError(Exception):
    """The pickle cannot be read further; the text says why."""


PickleFunction = Callable[[tuple[Any, ...]], Any]


class PickleMachine:
    """Interprets pickles with a table of allowed functions.

    Args:
        functions: by the name of the callee; each gets the arguments as one tuple.
        persistent: resolves a persistent id (torch: a storage).
    """

    def __init__(self, functions: Mapping[str, PickleFunction], persistent: PickleFunction):
        self._functions = functions
        self._persistent = persistent
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self.names: dict[str, None] = {}
        """Every name so far, in order, also of calls that failed."""

    def run(self, file: io.BytesIO) -> Any:
        """Read the pickle that begins at the file's position, and move the position behind it.

        Raises:
            BrokenPickleError: it is cut short, malformed, longer than MAX_OPERATIONS, or needs a real class. The names
                after that place are recorded as well.
        """
        self._stack, self._marks, self._memo = [], [], {}
        broken: BrokenPickleError | None = None
        texts = ["", ""]
        try:
            for number, (operation, argument, _) in enumerate(pickletools.genops(file)):
                if number > MAX_OPERATIONS:
                    raise broken or BrokenPickleError(f"it has more than {MAX_OPERATIONS} steps")
                if isinstance(argument, str):
                    texts = [texts[1], argument]
                if broken is not None:
                    self._record_name(operation.name, texts)
                elif operation.name == "STOP":
                    return self._stack.pop()
                else:
                    try:
                        self._step(operation.name, argument)
                    except BrokenPickleError as error:
                        broken = error
                    except (ValueError, IndexError, KeyError, TypeError, RecursionError, OverflowError) as error:
                        broken = _malformed_error(error)
        except (ValueError, IndexError) as error:  # pickletools could not go on, or the stack was empty at the end
            raise broken or _malformed_error(error) from error
        raise broken or BrokenPickleError("its pickle has no end")

    def _record_name(self, name: str, texts: list[str]) -> None:
        """Record a name in the rest of a broken pickle, from the last two texts; there is no stack any more."""
        if name in ("GLOBAL", "INST") and len(texts[1]) <= MAX_NAME_LENGTH:
            self.names[".".join(texts[1].split(" ", 1))] = None
        elif name == "STACK_GLOBAL" and sum(map(len, texts)) < MAX_NAME_LENGTH:
            self.names[".".join(texts)] = None

    def _step(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise BrokenPickleError(f"its pickle uses {name}, which weights never need")

    def _pop_to_mark(self) -> list[Any]:
        place = self._marks.pop()
        items = self._stack[place:]
        del self._stack[place:]
        return items

    def _push_name(self, *parts: str) -> None:
        if sum(map(len, parts)) >= MAX_NAME_LENGTH:
            raise BrokenPickleError(f"it asks for something whose name has more than {MAX_NAME_LENGTH} letters")
        name = ".".join(parts)
        self.names[name] = None
        self._stack.append(PickledName(name))

    def _call(self, callee: Any, arguments: Any) -> Any:
        if not isinstance(callee, PickledName) or not isinstance(arguments, tuple):
            raise BrokenPickleError("it calls something that is no name")
        function = self._functions.get(callee.name)
        return InertObject(callee.name) if function is None else function(arguments)

    def _mark(self, _: Any) -> None:
        self._marks.append(len(self._stack))

    def _pop(self, _: Any) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def _pop_mark(self, _: Any) -> None:
        self._pop_to_mark()

    def _dup(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def _get(self, argument: Any) -> None:
        self._stack.append(self._memo[int(argument)])

    def _put(self, argument: Any) -> None:
        self._memo[int(argument)] = self._stack[-1]

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def _tuple_n(self, count: int) -> None:
        items = tuple(self._stack[-count:])
        if len(items) < count:
            raise BrokenPickleError("its stack is empty")
        self._stack[-count:] = [items]

    def _list(self, _: Any) -> None:
        self._stack.append(self._pop_to_mark())

    def _dict(self, _: Any) -> None:
        self._stack.append(_fill_dict({}, self._pop_to_mark()))

    def _append(self, _: Any) -> None:
        item = self._stack.pop()
        _extend_list(self._stack[-1], [item])

    def _appends(self, _: Any) -> None:
        items = self._pop_to_mark()
        _extend_list(self._stack[-1], items)

    def _set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _fill_dict(self._stack[-1], [key, value])

    def _set_items(self, _: Any) -> None:
        items = self._pop_to_mark()
        _fill_dict(self._stack[-1], items)

    def _global(self, argument: Any) -> None:
        self._push_name(*str(argument).split(" ", 1))

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise BrokenPickleError("it names something without a name")
        self._push_name(module, name)

    def _instance(self, argument: Any) -> None:
        arguments = tuple(self._pop_to_mark())
        self._global(argument)
        self._stack.append(self._call(self._stack.pop(), arguments))

    def _object(self, _: Any) -> None:
        callee, *arguments = self._pop_to_mark()
        self._stack.append(self._call(callee, tuple(arguments)))

    def _reduce(self, _: Any) -> None:
        arguments, callee = self._stack.pop(), self._stack.pop()
        self._stack.append(self._call(callee, arguments))

    def _new_with_keywords(self, _: Any) -> None:
        self._stack.pop()  # keyword arguments
        self._reduce(None)

    def _build(self, _: Any) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], InertObject):
            self._stack[-1].state = state  # elsewhere attributes, such as the versions kept beside a state dict

    def _persistent_id(self, argument: Any) -> None:
        self._stack.append(self._persistent((self._stack.pop() if argument is None else argument,)))


def _malformed_error(error: Exception) -> BrokenPickleError:
    return BrokenPickleError(f"its pickle is malformed, {type(error).__name__}: {str(error)[:80]}")


def _fill_dict(target: Any, items: list[Any]) -> Any:
    """Add entries to a dictionary or an inert object."""
    if len(items) % 2:
        raise BrokenPickleError("a key has no value")
    if isinstance(target, InertObject):
        target.content.extend(items)
        return target
    if not isinstance(target, dict):
        raise BrokenPickleError(f"it sets an item of a {type(target).__name__}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not (
            isinstance(key, str | bytes | PickledName) or key is None or (isinstance(key, int) and abs(key) < 2**60)
        ):
            raise BrokenPickleError(f"a key is a {type(key).__name__}")  # hashing nested tuples can take for ever
        target[key] = value
    return target


def _extend_list(target: Any, items: list[Any]) -> None:
    if isinstance(target, InertObject):
        target.content.extend(items)
    elif isinstance(target, list):
        target.extend(items)
    else:
        raise BrokenPickleError(f"it appends to a {type(target).__name__}")


_LITERALS = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)
_CONSTANTS: Mapping[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: Mapping[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": list}
_STEPS: Mapping[str, Callable[[PickleMachine, Any], None]] = {
    "MARK": PickleMachine._mark,
    "POP": PickleMachine._pop,
    "POP_MARK": PickleMachine._pop_mark,
    "DUP": PickleMachine._dup,
    "GET": PickleMachine._get,
    "BINGET": PickleMachine._get,
    "LONG_BINGET": PickleMachine._get,
    "PUT": PickleMachine._put,
    "BINPUT": PickleMachine._put,
    "LONG_BINPUT": PickleMachine._put,
    "MEMOIZE": PickleMachine._memoize,
    "TUPLE": PickleMachine._tuple,
    "TUPLE1": lambda machine, _: machine._tuple_n(1),
    "TUPLE2": lambda machine, _: machine._tuple_n(2),
    "TUPLE3": lambda machine, _: machine._tuple_n(3),
    "LIST": PickleMachine._list,
    "DICT": PickleMachine._dict,
    "FROZENSET": PickleMachine._list,
    "APPEND": PickleMachine._append,
    "APPENDS": PickleMachine._appends,
    "ADDITEMS": PickleMachine._appends,
    "SETITEM": PickleMachine._set_item,
    "SETITEMS": PickleMachine._set_items,
    "GLOBAL": PickleMachine._global,
    "STACK_GLOBAL": PickleMachine._stack_global,
    "INST": PickleMachine._instance,
    "OBJ": PickleMachine._object,
    "NEWOBJ": PickleMachine._reduce,
    "NEWOBJ_EX": PickleMachine._new_with_keywords,
    "REDUCE": PickleMachine._reduce,
    "BUILD": PickleMachine._build,
    "PERSID": PickleMachine._persistent_id,
    "BINPERSID": PickleMachine._persistent_id,
}
