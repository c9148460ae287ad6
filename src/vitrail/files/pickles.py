"""The one place that reads pickled weights, and only tensors in a dictionary come out of it.

Pickle is a programming language: a hostile file can run anything. torch's restricted reader allows a short list of
tensor types; nothing else is ever tried when it refuses.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import torch

from ..errors import DamagedFileError


def load_state_dict(path: Path) -> dict[str, object]:
    """Read a `.pt`, `.pth`, `.bin` or `.ckpt` file that holds a dictionary, of tensors or wrapped around them.

    Raises:
        DamagedFileError: the file is missing, damaged, would run code, or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise DamagedFileError(f"There is no weights file {path}. Check the path.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of legacy containers that it then reads or refuses
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file can raise anything
        raise DamagedFileError(_refusal(path, str(error))) from error
    if not isinstance(content, dict):
        raise DamagedFileError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors. {_ADVICE}")
    return content


def _refusal(path: Path, message: str) -> str:
    wanted = sorted(set(re.findall(r"(?:GLOBAL|class|global) ([A-Za-z_][\w.]*\.\w+)", message)))
    if wanted:
        return (
            f"{path} asks to run {', '.join(wanted)} when it is read, so it was not read. "
            "Save only the weights again, torch.save(model.state_dict(), path), where you trust the file."
        )
    return f"{path} is not a whole PyTorch weights file. It is cut short, changed or of another kind: copy it again."


_ADVICE = "Save the weights alone: torch.save(model.state_dict(), path)."
