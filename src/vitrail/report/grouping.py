"""Which held-out pictures belong together, such as those of one patient: kept as numbers that name nobody."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from jaxtyping import Int64, Shaped

from ..errors import DamagedFileError
from ..files import atomic

NAME = "groups.npy"


def save(folder: Path, groups: Shaped[np.ndarray, " n"] | None) -> None:
    """Write groups.npy into a run folder in one step; nothing where pictures stand alone.

    Args:
        groups: of each row of the held-out split's predictions file.
    """
    if groups is None:
        return
    data = io.BytesIO()
    np.save(data, np.unique(groups, return_inverse=True)[1].astype(np.int64))
    atomic.write_bytes(Path(folder) / NAME, data.getvalue())


def load(folder: Path, rows: int) -> Int64[np.ndarray, " n"] | None:
    """The group of each row; None where nobody has stored any.

    Raises:
        DamagedFileError: the file cannot be read, or is of another number of rows.
    """
    path = Path(folder) / NAME
    if not path.exists():
        return None
    try:
        groups = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise DamagedFileError(f"{path} must hold one whole number for each of {rows} rows. {problem}.") from problem
    if not isinstance(groups, np.ndarray) or groups.dtype != np.int64 or groups.shape != (rows,):
        raise DamagedFileError(
            f"{path} must hold one whole number for each of {rows} rows of predictions. Got "
            f"{groups.dtype} {list(groups.shape)}; are both of one run?"
        )
    return groups
