"""How signatures are checked while tests run: jaxtyping reads the shapes, beartype the types; an int may be a float.

jaxtyping keeps account of the sides of arrays through a call, which takes longer than most functions do. Those that
neither take nor return an array are therefore given to beartype alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, get_args

import jaxtyping
import numpy as np
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
with_shapes = jaxtyping.jaxtyped
KIND_OF_ARRAYS = type(jaxtyping.Float[np.ndarray, ""])


def check_on_import(package: str) -> None:
    """Check what is imported of a package from now on."""
    jaxtyping.jaxtyped = checked_by_need  # as the code that the hook inserts calls it
    jaxtyping.install_import_hook(package, "shapes.checked")


def checked_by_need(typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """A decorator of functions and classes: jaxtyping's own for those with arrays, beartype for the others."""
    whole = with_shapes(typechecker=typechecker)

    def decorate(found: Any) -> Any:
        if isinstance(found, type):
            start = vars(found).get("__init__")
            is_new = isinstance(start, FunctionType) and start.__globals__ is not globals()  # not one that converts
            if dataclasses.is_dataclass(found) and is_new:
                found.__init__ = decorate(start)  # type: ignore[misc]
            return found
        if not isinstance(found, FunctionType):
            return whole(found)
        meant = {name: resolve(hint, found.__globals__) for name, hint in found.__annotations__.items()}
        check = whole if any(map(holds_array, meant.values())) else checked
        ready: Callable[..., Any] | None = None

        @functools.wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal ready
            if ready is None:  # most functions of the package are never called in a process
                written, found.__annotations__ = found.__annotations__, meant
                ready = check(found)
                found.__annotations__ = written
            return ready(*args, **kwargs)

        return call

    return decorate


def resolve(hint: Any, names: dict[str, Any]) -> Any:
    """What an annotation means; Any for one whose names are not there yet, as jaxtyping has it."""
    try:
        return eval(hint, names) if isinstance(hint, str) else hint
    except Exception:
        return Any


def holds_array(hint: Any) -> bool:
    """Whether a type has an array with a shape in it."""
    inner = hint if isinstance(hint, list) else get_args(hint)
    return isinstance(hint, KIND_OF_ARRAYS) or any(map(holds_array, inner))
