"""From what a training script saved to the plain dictionary of tensors inside it."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import DamagedFileError, ResourceError, UsageError
from ..files import npy, onnx_guard, pickles, safetensors_file
from ..files.memory import copy_mapped_tensors, machine_memory
from ..files.sniff import detect_kind
from ..files.zip_archive import ZipArchive

WRAPPERS = ("model_ema", "state_dict_ema", "state_dict", "model_state_dict", "model", "module")
"""Names under which training scripts keep a model's tensors, the averaged ones first."""
PREFIXES = ("_orig_mod.", "module.")
"""What torch.compile and data-parallel training put before every name."""
NETWORKS = {
    "original": ("teacher", "target_encoder", "student", "encoder"),
    "timm": ("teacher", "encoder", "target_encoder", "student"),
    "transformers": ("teacher", "encoder", "target_encoder", "student"),
}
"""Names of networks in files that hold several of a training, the one to take first. I-JEPA's authors evaluate the
target encoder; timm and transformers converted the other one."""
BACKBONE = "backbone."
"""Before the names of the encoder itself in the networks of DINO and DINOv2, whose heads lie beside it."""
PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".tar")
NAME = 512
"""Letters of a tensor's longest name."""


@dataclass(kw_only=True)
class Content:
    """What a weights file holds. Its tensors are given away one by one while they are read."""

    tensors: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)
    """What was chosen among several things in the file."""


def open_file(path: Path, match: str | None = None, network: str | None = None) -> Content:
    """Every tensor of a weights file, wrappers and prefixes taken off.

    Args:
        match: whose choice of network counts where a file holds several (see NETWORKS).
        network: or the name of that network.

    Raises:
        DamagedFileError: the file is missing, damaged, or holds something else.
        UsageError: the ending of its name is not one of a weights file, or there is no such network.
        ResourceError: its tensors take more memory than the machine has.
    """
    content = Content(tensors={})
    stored, memory = _stored(path)
    if not _has_checksums(path):
        content.notes.append("the file carries no checksum: that it is unchanged was not verified")
    content.tensors = _innermost(stored, str(path), _order(match, network), content.notes)
    del stored
    if memory is not None:
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in content.tensors.values()
        }
        _check_room(path, sum(storage.nbytes() for storage in storages.values()))
        content.tensors = copy_mapped_tensors(content.tensors, memory)
    if network is not None and not any(note.startswith(f"{network} was read") for note in content.notes):
        raise UsageError(f"{path} holds one model, not several networks. Leave network={network!r} out.")
    return content


def read_tensors(path: Path) -> dict[str, Tensor]:
    """`open_file` without its notes."""
    return open_file(path).tensors


def unwrap(content: Mapping[str, object], where: str) -> dict[str, Tensor]:
    """The innermost dictionary of tensors, without the prefixes that every name has.

    Raises:
        DamagedFileError: there is something else than tensors in it.
    """
    return _innermost(content, where, NETWORKS["original"], [])


def _stored(path: Path) -> tuple[Mapping[str, object], mmap.mmap | None]:
    """What a file holds; and the mapped file, where its tensors are views of that and not in memory of their own."""
    if path.suffix == ".safetensors":
        if path.is_file():
            _check_room(path, path.stat().st_size)
        return dict(safetensors_file.open_tensors(path)), None
    if path.suffix == ".npz":
        return npy.open_npz(path)
    if path.suffix in PICKLED:
        return pickles.open_state_dict(path)
    if path.suffix == ".onnx" and path.is_file():
        onnx_guard.check_onnx_file(path)
        raise UsageError(
            f"{path} is an ONNX model: a program with its weights under names that its exporter chose. "
            "Give the checkpoint that it was made from."
        )
    raise UsageError(f"A weights file ends in .safetensors, .npz, {', '.join(PICKLED)}. Got {path}.")


def _has_checksums(path: Path) -> bool:
    """Whether a flipped bit in the file's numbers would have been noticed."""
    if path.suffix == ".safetensors":
        return safetensors_file.has_checksum(path)
    return detect_kind(path) == "zip" and ZipArchive(path).has_checksums()


def _check_room(path: Path, count: int) -> None:
    """Refuse what cannot fit before it is read: a file without content can claim any size."""
    limit = machine_memory()
    if limit is not None and count > limit:
        raise ResourceError(
            f"The tensors of {path} take {count:,} bytes, and this machine has {limit:,} bytes of memory. "
            "Take a smaller model, or a machine with more memory."
        )


def _order(match: str | None, network: str | None) -> tuple[str, ...]:
    return (network,) if network is not None else NETWORKS.get(match or "original", ())


def _innermost(
    content: Mapping[Any, object], where: str, order: tuple[str, ...], notes: list[str]
) -> dict[str, Tensor]:
    for wrapper in WRAPPERS:
        inside = content.get(wrapper)
        if isinstance(inside, Mapping):
            if wrapper.endswith("_ema"):
                notes.append(f"{wrapper} was read: the averaged weights")
            return _innermost(inside, where, order, notes)
    held = [name for name in content if name in _ANY_NETWORK and isinstance(content[name], Mapping)]
    chosen = next((name for name in order if name in held), None)
    if held and chosen is None:
        raise UsageError(
            f"{where} holds no network called {' or '.join(order)}. Name one with network=: {', '.join(held)}."
        )
    if chosen is not None:
        others = [name for name in held if name != chosen]
        notes.append(f"{chosen} was read" + (f", not {' or '.join(others)}: network= chooses" if others else ""))
        inside = content[chosen]
        assert isinstance(inside, Mapping)
        return _encoder(_innermost(inside, where, order, notes), notes)
    for name in content:
        if not isinstance(name, str) or not 0 < len(name) <= NAME or not name.isprintable():
            raise DamagedFileError(f"{where}: a tensor is called {ascii(name)[:80]}, which is no plain name. {_ADVICE}")
    found = {name: _plain(value) for name, value in content.items() if isinstance(value, Tensor)}
    if other := [name for name in content if name not in found]:
        raise DamagedFileError(
            f"{where} must hold tensors by name, alone or under one of {', '.join(WRAPPERS)}. "
            f"It holds something else called {', '.join(name[:80] for name in other[:3])}."
        )
    return _without_prefixes(found)


_ADVICE = "Use another copy of the file."
_ANY_NETWORK = frozenset(name for order in NETWORKS.values() for name in order)


def _without_prefixes(found: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in PREFIXES:
        if found and all(name.startswith(prefix) for name in found):
            return _without_prefixes({name.removeprefix(prefix): tensor for name, tensor in found.items()})
    return found


def _encoder(network: dict[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    """The encoder of a network that also holds the heads of its training."""
    inside = {name.removeprefix(BACKBONE): tensor for name, tensor in network.items() if name.startswith(BACKBONE)}
    if inside and len(inside) < len(network):
        heads = sorted({name.partition(".")[0] for name in network if not name.startswith(BACKBONE)})
        notes.append(f"{len(network) - len(inside)} tensors beside the backbone were left out: {', '.join(heads[:8])}")
    return inside or network


def _plain(tensor: Tensor) -> Tensor:
    """A parameter without its gradient."""
    return tensor.detach() if tensor.requires_grad else tensor
