"""What to know of weights that somebody else has trained: their numerics, where they come from, under which licence."""

from __future__ import annotations

from typing import Any

from .models import Found


def provenance(found: Found) -> dict[str, Any]:
    """The same as plain values; what nobody has said is empty."""
    shape = found.config
    return {
        "numerics": {
            "norm": shape.norm,
            "norm_eps": shape.norm_eps,
            "activation": shape.activation,
            "pool": shape.pool,
            "final_norm": shape.final_norm,
            "resample": shape.resample if shape.positions in ("learned", "indexed") else None,
        },
        "interpolation": found.spec.interpolation,
        "licence": found.licence,
        "repository": found.repository,
        "notes": list(found.notes),
    }


def lines(found: Found) -> list[str]:
    """For people, one fact a line, in the columns of the table of a model's shape."""
    shape = found.config
    order = "the final norm, then " if shape.final_norm else ""
    rows = [
        ("numerics", f"{shape.norm} eps {shape.norm_eps:g}, {shape.activation}; {order}{shape.pool} pooling"),
        ("resize", f"pictures {found.spec.interpolation}, to fit: {found.spec.fit}{_positions(found)}"),
        ("licence", _licence(found)),
    ]
    rows += [("from", found.repository)] if found.repository else []
    rows += [("note" if not place else "", note) for place, note in enumerate(found.notes)]
    return [f"  {name:<11} {text}" for name, text in rows]


def licence_line(found: Found) -> str:
    """Under which licence whose weights were published; empty where nobody says it.

    A file cannot say whether it holds those weights, or others of the same kind that somebody trained anew.
    """
    whose = f" that {found.repository} published" if found.repository else ""
    return f"licence of the weights{whose}: {found.licence}" if found.licence else ""


def _licence(found: Found) -> str:
    if not found.licence or not found.repository:
        return found.licence or "nobody says"
    return f"{found.licence}, of the weights that {found.repository} published"


def _positions(found: Found) -> str:
    return f"; positions {found.config.resample}" if found.config.positions in ("learned", "indexed") else ""
