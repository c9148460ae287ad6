"""Arguments are checked by their annotations: plain values come out, and one of another type is named."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import vitrail
from vitrail.argument_types import check_arguments, check_calls, check_construction
from vitrail.errors import UsageError
from vitrail.services.explanation import Explanation

PACKAGE = Path(vitrail.__file__).parent


class Follow(Protocol):
    """A callback."""

    def __call__(self, step: int) -> None: ...


def ask(
    count: int | None = None,
    share: float = 0.0,
    flag: bool = False,
    name: str | None = None,
    path: str | Path | None = None,
    color: Literal["red", "green"] = "red",
    size: int | tuple[int, int] | None = None,
    means: tuple[float, ...] = (),
    names: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    table: Mapping[str, float] | None = None,
    settings: Mapping[str, object] | None = None,
    call: Callable[[Tensor], Tensor] | None = None,
    calls: Sequence[Follow] = (),
    tensor: Tensor | None = None,
    images: str | Path | Iterable[object] = "",
    shaped: Float[Tensor, "B C"] | None = None,
    anything: object = None,
    *more: int,
    **others: int,
) -> None:
    """Arguments of every kind."""


def checked(**arguments: Any) -> Any:
    _, named = check_arguments(ask, (), arguments)
    (value,) = named.values()
    return value


TAKEN = [
    ("count", np.int64(2), 2),
    ("count", None, None),
    ("share", np.float32(0.5), 0.5),
    ("share", np.uint8(3), 3),
    ("share", 3, 3),
    ("flag", np.True_, True),
    ("name", np.str_("a"), "a"),
    ("path", Path("a"), Path("a")),
    ("path", np.str_("a"), "a"),
    ("color", np.str_("green"), "green"),
    ("size", np.int32(8), 8),
    ("size", [8, np.int64(12)], (8, 12)),
    ("size", torch.Size([8, 12]), (8, 12)),
    ("means", np.array([0.5, 0.25]), (0.5, 0.25)),
    ("names", np.array(["a", "b"]), ("a", "b")),
    ("rows", range(3), (0, 1, 2)),
    ("table", {np.str_("a"): np.float64(0.5)}, {"a": 0.5}),
    ("settings", {"a": None}, {"a": None}),
    ("call", len, len),
    ("calls", [len], (len,)),
    ("images", 5, 5),
    ("anything", 5, 5),
    ("others", "a", "a"),
    ("unknown", "a", "a"),
]


@pytest.mark.parametrize(("name", "value", "expected"), TAKEN, ids=str)
def test_a_value_comes_out_plain(name, value, expected):
    result = checked(**{name: value})
    assert result == expected and type(result) is type(expected)


REFUSED = [
    ("count", "1", r"count must be a whole number\. Got '1'\. Leave the quotes out\."),
    ("count", 2.0, r"count must be a whole number\. Got 2\.0\."),
    ("count", True, r"count must be a whole number\. Got True\."),
    ("count", np.True_, r"count must be a whole number\. Got np\.True_\."),
    ("share", None, r"share must be a number\. Got None\."),
    ("share", "1e-3", r"share must be a number\. Got '1e-3'\. Leave the quotes out\."),
    ("share", "fast", r"share must be a number\. Got 'fast'\."),
    ("share", False, r"share must be a number\. Got False\."),
    ("flag", 1, r"flag must be True or False\. Got 1\."),
    ("flag", "yes", r"flag must be True or False\. Got 'yes'\."),
    ("name", Path("a"), r"name must be text\. Got PosixPath\('a'\)\."),
    ("name", b"a", r"name must be text\. Got b'a'\."),
    ("path", 5, r"path must be a path\. Got 5\."),
    ("color", "gren", r"color must be one of red, green\. Got 'gren'\. Did you mean 'green'\?"),
    ("color", 3, r"color must be one of red, green\. Got 3\."),
    ("size", 8.0, r"size must be a whole number or 2 whole numbers\. Got 8\.0\."),
    ("size", (8, 8, 8), r"size must be a whole number or 2 whole numbers\. Got \(8, 8, 8\)\."),
    ("means", 0.5, r"means must be a list of numbers\. Got 0\.5\. Write it as a list\."),
    ("names", "cat", r"names must be a list of texts\. Got 'cat'\. Write it as a list\."),
    ("names", [1], r"names must be a list of texts\. Got \[1\]\."),
    ("rows", 3, r"rows must be a list of whole numbers\. Got 3\. Write it as a list\."),
    ("rows", np.zeros((2, 2), int), r"rows must be a list of whole numbers\. Got a ndarray\."),
    ("table", 0.5, r"table must be a dictionary of names and numbers\. Got 0\.5\."),
    ("table", {"a": "b"}, r"table must be a dictionary of names and numbers\. Got {'a': 'b'}\."),
    ("settings", {1: 2}, r"settings must be a dictionary of names and values\. Got {1: 2}\."),
    ("settings", ["a"], r"settings must be a dictionary of names and values\. Got \['a'\]\."),
    ("call", "len", r"call must be a function\. Got 'len'\."),
    ("calls", len, r"calls must be a list of functions\. Got a builtin_function_or_method\. Write it as a list\."),
    ("tensor", [1], r"tensor must be a Tensor\. Got \[1\]\."),
    ("name", 10**100, r"name must be text\. Got 10{76}\.\.\.\."),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED, ids=str)
def test_a_value_of_another_type_is_refused_with_the_name_of_the_argument(name, value, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        checked(**{name: value})


def test_what_an_annotation_says_of_shapes_is_left_to_the_function():
    assert checked(shaped=torch.zeros(3)).shape == (3,)


def test_positional_arguments_are_checked_by_their_places_and_surplus_ones_left_to_python():
    assert check_arguments(ask, (np.int64(1), 2), {}) == ((1, 2), {})
    with pytest.raises(UsageError, match=r"^share must be a number"):
        check_arguments(ask, (1, "a"), {})

    @check_calls
    def one(count: int) -> int:
        return count

    assert one(np.int64(1)) == 1
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        one(1, 2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'count'"):
        one()


def test_a_class_checks_what_it_is_made_of():
    @check_construction
    class Size:
        """A side."""

        def __init__(self, side: int):
            self.side = side

    assert Size(np.int64(3)).side == 3
    with pytest.raises(UsageError, match=r"^side must be a whole number\. Got 'a'\.$"):
        Size("a")


def decorated() -> list[Callable[..., Any]]:
    """Methods of the package with the decorator."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "    @check_calls" in (code := path.read_text("utf-8")):
            module = importlib.import_module(".".join(("vitrail", *path.relative_to(PACKAGE).with_suffix("").parts)))
            owners = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ClassDef)]
            found += [
                getattr(getattr(module, owner.name), member.name)
                for owner in owners
                for member in owner.body
                if isinstance(member, ast.FunctionDef) and "check_calls" in map(ast.unparse, member.decorator_list)
            ]
    return found


def test_annotations_of_checked_methods_can_be_resolved_without_the_imports_of_type_checkers():
    methods = decorated()
    assert len(methods) >= 8 and Explanation.figure in methods
    for method in methods:
        check_arguments(method, (), {})
