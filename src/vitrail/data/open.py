"""Which reader a SOURCE belongs to: a name that Vitrail knows, or a folder."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from ..errors import DataError
from .source import Source


def open_source(name: str, data_root: Path | None = None) -> Source:
    """The pictures and labels behind a name; a folder called like a built-in source is written `./digits`.

    Raises:
        DataError: nothing there, not a folder, or its contents cannot be used.
    """
    if name in BUILT_IN:
        return BUILT_IN[name](data_root)
    from .sources.class_folders import open_class_folders

    folder = Path(name).expanduser()
    if folder.is_dir():
        return open_class_folders(folder)
    if folder.exists():
        raise DataError(f"{name} is a file. Expected a folder with one folder per class, or one of {_names()}.")
    close = difflib.get_close_matches(name, BUILT_IN, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise DataError(
        f"There is no folder {name}. Expected a folder with one folder per class, or one of {_names()}.{hint}"
    )


def _names() -> str:
    return ", ".join(BUILT_IN)


def _digits(data_root: Path | None) -> Source:
    from .sources.digits import open_digits

    return open_digits()


def _fashion_mnist(data_root: Path | None) -> Source:
    from .sources.idx import open_fashion_mnist

    return open_fashion_mnist(data_root)


def _mnist(data_root: Path | None) -> Source:
    from .sources.idx import open_mnist

    return open_mnist(data_root)


BUILT_IN: dict[str, Callable[[Path | None], Source]] = {
    "digits": _digits,
    "fashion-mnist": _fashion_mnist,
    "mnist": _mnist,
}
