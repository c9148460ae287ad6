"""Which layout a file has, by tensor names that no other family uses."""

from __future__ import annotations

from collections.abc import Collection

from ..errors import DamagedFileError, UsageError
from .complete import nearest
from .families import blog_conv, explained, xray_rope
from .rules import Layout

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (blog_conv.LAYOUT, explained.LAYOUT, xray_rope.LAYOUT)}
"""Every layout of foreign files, by the name that people write after `layout=`."""


def identify(names: Collection[str]) -> str:
    """The name of the one layout whose decisive tensor names are all in the file.

    Raises:
        DamagedFileError: none fits, or several do. The layout that comes nearest is named with what it lacks.
    """
    fitting = [layout.name for layout in LAYOUTS.values() if all(name in names for name in layout.decisive)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise DamagedFileError(f"The file fits {len(fitting)} layouts, {' and '.join(fitting)}. Name one with layout=.")
    raise DamagedFileError(
        f"The file has none of the layouts known here: {', '.join(LAYOUTS)}. {_nearest_layout(names) or _shown(names)}"
    )


def named_layout(name: str) -> Layout:
    """The layout that a person named.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in LAYOUTS:
        raise UsageError(f"There is no layout {name!r}. Known: bundle, {', '.join(LAYOUTS)}.")
    return LAYOUTS[name]


def _nearest_layout(names: Collection[str]) -> str:
    """Words about the layout of which some decisive name is there, and what it lacks."""
    for layout in LAYOUTS.values():
        lacking = [name for name in layout.decisive if name not in names]
        if len(lacking) < len(layout.decisive):
            words = " and ".join(name + nearest(name, names) for name in lacking)
            return f"It comes near {layout.name}, but lacks {words}."
    return ""


def _shown(names: Collection[str]) -> str:
    return f"Its first tensors are called {', '.join(list(names)[:4])}." if names else "It holds no tensors at all."
