"""From what a training script saved to the plain dictionary of tensors inside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ..errors import DamagedFileError, UsageError
from ..files import pickles, tensors

WRAPPERS = ("model_ema", "state_dict_ema", "state_dict", "model_state_dict", "model", "module")
"""Names under which training scripts keep a model's tensors, the averaged ones first."""
PREFIXES = ("_orig_mod.", "module.")
"""What torch.compile and data-parallel training put before every name."""
PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".tar")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a weights file, wrappers and prefixes taken off.

    Raises:
        DamagedFileError: the file is missing, damaged, or holds something else.
        UsageError: the ending of its name is not one of a weights file.
    """
    if path.suffix == ".safetensors":
        return unwrap(tensors.load(path), str(path))
    if path.suffix in PICKLED:
        return unwrap(pickles.load_state_dict(path), str(path))
    raise UsageError(f"A weights file ends in .safetensors or {', '.join(PICKLED)}. Got {path}.")


def unwrap(content: Mapping[str, object], where: str) -> dict[str, Tensor]:
    """The innermost dictionary of tensors, without the prefixes that every name has.

    Raises:
        DamagedFileError: there is something else than tensors in it.
    """
    for wrapper in WRAPPERS:
        inside = content.get(wrapper)
        if isinstance(inside, Mapping):
            return unwrap(inside, where)
    found = {name: _plain(value) for name, value in content.items() if isinstance(value, Tensor)}
    if other := [name for name in content if name not in found]:
        raise DamagedFileError(
            f"{where} must hold tensors by name, alone or under one of {', '.join(WRAPPERS)}. "
            f"It holds something else called {', '.join(map(str, other[:3]))}."
        )
    for prefix in PREFIXES:
        if found and all(name.startswith(prefix) for name in found):
            return unwrap({name.removeprefix(prefix): tensor for name, tensor in found.items()}, where)
    return found


def _plain(tensor: Tensor) -> Tensor:
    """A parameter without its gradient."""
    return tensor.detach() if tensor.requires_grad else tensor
