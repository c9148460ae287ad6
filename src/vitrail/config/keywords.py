"""Errors of the Python interface: unknown keywords are explained, and messages name arguments instead of flags."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import GeneratorType
from typing import Any, ParamSpec, TypeVar, cast

from ..argument_types import check_calls
from ..errors import VitrailError
from .library_names import LIBRARY_NAMES, explain_library_name, suggest_name
from .python_spelling import to_python
from .schema import describe

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ClassT = TypeVar("ClassT")


def explain_keywords(
    settings: type[Any] | None = None,
    fields: type[Any] | None = None,
    hints: Mapping[str, str] | None = None,
    check_types: bool = True,
) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Decorate a function of the Python interface so that its errors speak of its arguments.

    The TypeError for an unknown keyword says what it is called here; the rest is as by `spell_errors`.

    Args:
        settings: the class whose fields the function's argument `settings` takes by their dotted names.
        fields: the class whose fields the function takes as further keywords.
        hints: unknown keyword -> the sentence that says what to do instead.
        check_types: False leaves the values as they are, as scikit-learn asks of the construction of an estimator.
    """

    return lambda function: _check_keywords(
        spell_errors(function) if check_types else function, settings, fields, hints
    )


def spell_errors(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Decorate a function of the Python interface so that its arguments are checked, and its errors name them.

    Of a function that returns a generator, so are the errors of the loop over it.
    """

    checked = check_calls(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        with _spell_as_arguments():
            result = checked(*args, **kwargs)
        return cast("ResultT", _spell_loop(result)) if isinstance(result, GeneratorType) else result

    return call


@contextmanager
def _spell_as_arguments() -> Iterator[None]:
    """Within this block errors are raised with arguments instead of flags."""
    try:
        yield
    except VitrailError as error:
        error.args = tuple(to_python(each) if isinstance(each, str) else each for each in error.args)
        raise


def _spell_loop(values: Generator[object, None, object]) -> Generator[object, None, object]:
    with _spell_as_arguments():
        return (yield from values)


def spell_errors_of_class(cls: type[ClassT]) -> type[ClassT]:
    """Decorate a class in the same way: its construction, its public methods and its cached properties."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, functools.cached_property):
            member.func = spell_errors(member.func)
        elif inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, spell_errors(member))
    return cls


def explain_class_keywords(cls: type[ClassT]) -> type[ClassT]:
    """Decorate a class so that its construction explains unknown keywords and checks the others."""
    setattr(cls, "__init__", _check_keywords(check_calls(cls.__init__)))  # noqa: B010 - mypy refuses an assignment
    return cls


def _check_keywords(
    function: Callable[P, ResultT],
    settings: type[Any] | None = None,
    fields: type[Any] | None = None,
    hints: Mapping[str, str] | None = None,
) -> Callable[P, ResultT]:
    own = inspect.signature(function).parameters.values()
    parameters = [parameter.name for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters += [] if fields is None else [field.name for field in describe(fields)]

    @functools.wraps(function)
    def call_with_known_keywords(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        for name in kwargs:
            if name not in parameters:
                hint = explain_keyword(name, parameters, settings, hints or {})
                raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}.{hint}")
        return function(*args, **kwargs)

    return call_with_known_keywords


def explain_keyword(
    name: str,
    parameters: list[str],
    settings: type[Any] | None,
    hints: Mapping[str, str],
    setting_form: str = 'settings={{"{}": ...}}',
) -> str:
    """What an unknown keyword is called here, or which is near, with a blank before it; empty if nothing is known.

    Args:
        settings, hints: as `explain_keywords`.
        setting_form: how a field of the settings is given.
    """
    if name in hints:
        return f" {hints[name]}"
    if word := next((word for word in parameters if word in LIBRARY_NAMES and LIBRARY_NAMES[word].field == name), ""):
        return f" It is called {word} here."
    fields = [] if settings is None else [field.name for field in describe(settings)]
    known = {parameter: parameter for parameter in parameters}
    known |= {field: setting_form.format(field) for field in fields if field not in known}
    for field in sorted(fields, key=lambda field: not field.startswith("recipe.")):
        if field.rpartition(".")[2] == name:
            return f" Give it as {known[field]}."
    return explain_library_name(name, known) or suggest_name(name, parameters)
