"""Unknown Python keywords: the TypeError says what the setting is called here, or which name is near."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from .library_names import LIBRARY_NAMES, explain_library_name
from .schema import describe, suggest_name

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ClassT = TypeVar("ClassT")


def explain_keywords(
    settings: type[Any] | None = None, sentences: Mapping[str, str] | None = None
) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Decorate a function so that the TypeError for an unknown keyword explains it.

    Args:
        settings: the class whose fields the function's argument `settings` takes by their dotted names.
        sentences: unknown keyword -> what to do instead.
    """

    def decorate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        parameters = inspect.signature(function).parameters

        @functools.wraps(function)
        def call_with_known_keywords(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            for name in kwargs:
                if name not in parameters:
                    hint = explain_keyword(name, list(parameters), settings, sentences or {})
                    raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}.{hint}")
            return function(*args, **kwargs)

        return call_with_known_keywords

    return decorate


def explain_class_keywords(cls: type[ClassT]) -> type[ClassT]:
    """Decorate a class in the same way: its construction explains unknown keywords."""
    setattr(cls, "__init__", explain_keywords()(cls.__init__))  # noqa: B010 - mypy refuses a plain assignment
    return cls


def explain_keyword(
    name: str,
    parameters: list[str],
    settings: type[Any] | None,
    sentences: Mapping[str, str],
    setting_form: str = 'settings={{"{}": ...}}',
) -> str:
    """What an unknown keyword is called here, or which is near, with a blank before it; empty if nothing is known.

    Args:
        settings, sentences: as `explain_keywords`.
        setting_form: how a field of the settings is given.
    """
    if name in sentences:
        return f" {sentences[name]}"
    if word := next((word for word in parameters if word in LIBRARY_NAMES and LIBRARY_NAMES[word].field == name), ""):
        return f" It is called {word} here."
    fields = [] if settings is None else [field.name for field in describe(settings)]
    known = {parameter: parameter for parameter in parameters}
    known |= {field: setting_form.format(field) for field in fields if field not in known}
    for field in sorted(fields, key=lambda field: not field.startswith("recipe.")):
        if field.rpartition(".")[2] == name:
            return f" Give it as {known[field]}."
    return explain_library_name(name, known) or suggest_name(name, parameters)
