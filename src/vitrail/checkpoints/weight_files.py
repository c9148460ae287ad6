"""Open weights files and folders of other libraries, and unwrap them to a plain dictionary of tensors."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import DamagedFileError, ResourceError, UsageError
from ..files import npy, onnx_guard, pickles, safetensors_file, strict_json
from ..files.checksums import MANIFEST
from ..files.memory import copy_mapped_tensors, machine_memory
from ..files.sniff import detect_kind
from ..files.zip_archive import ZipArchive

WRAPPERS = ("model_ema", "state_dict_ema", "state_dict", "model_state_dict", "model", "module")
"""Keys under which training scripts save a model's tensors, averaged (EMA) weights first."""
NAME_PREFIXES = ("_orig_mod.", "module.")
"""Prefixes that torch.compile and data-parallel training put before every name."""
NETWORKS = {
    "original": ("teacher", "target_encoder", "student", "encoder"),
    "timm": ("teacher", "encoder", "target_encoder", "student"),
    "transformers": ("teacher", "encoder", "target_encoder", "student"),
}
"""`match` -> keys of networks in training files that hold several, in order of preference. I-JEPA's authors evaluate
the target encoder; timm and transformers converted the other one."""
_ANY_NETWORK = frozenset(name for order in NETWORKS.values() for name in order)
BACKBONE_PREFIX = "backbone."
"""Prefix of the encoder's names in the networks of DINO and DINOv2, beside which their heads lie."""
PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
MAX_NAME_LENGTH = 512
"""Letters of the longest tensor name that is accepted."""
CONFIG_FILES = ("config.json", "open_clip_config.json")
WEIGHT_FILES = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)
"""Weights in one file, the safer format first."""
INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
"""Indexes of weights in several files."""
PREPROCESSOR_FILE = "preprocessor_config.json"
WRITTEN_BY_KEY = "written_by"
"""Field of a config.json in which Vitrail names itself."""
_ADVICE = "Use another copy of the file."


@dataclass(kw_only=True)
class WeightsContent:
    """What a weights file holds. `tensors` is emptied while they are loaded."""

    tensors: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)
    """Which of several networks or weights in the file was chosen."""


def open_weights_file(path: Path, match: str | None = None, network: str | None = None) -> WeightsContent:
    """Every tensor of a weights file, without wrappers and prefixes.

    Args:
        match: whose choice of network to follow if a file holds several (see NETWORKS).
        network: the name of the network to read instead.

    Raises:
        DamagedFileError: the file is missing, damaged, or holds something else.
        UsageError: the suffix is not one of a weights file, or there is no such network.
        ResourceError: its tensors take more memory than the machine has.
    """
    content = WeightsContent(tensors={})
    stored, memory = _open_container(path)
    if not _has_checksums(path):
        content.notes.append("the file carries no checksum: that it is unchanged was not verified")
    order = (network,) if network is not None else NETWORKS.get(match or "original", ())
    content.tensors = unwrap_state_dict(stored, str(path), order, content.notes)
    del stored
    if memory is not None:
        storages = [tensor.untyped_storage() for tensor in content.tensors.values()]
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        _check_memory(path, sum(sizes.values()))
        content.tensors = copy_mapped_tensors(content.tensors, memory)
    if network is not None and not any(note.startswith(f"{network} was read") for note in content.notes):
        raise UsageError(f"{path} holds one model, not several networks. Leave network={network!r} out.")
    return content


def _open_container(path: Path) -> tuple[Mapping[str, object], mmap.mmap | None]:
    """The content of a file, and the memory map if its tensors are views of one."""
    if path.suffix == ".safetensors":
        if path.is_file():
            _check_memory(path, path.stat().st_size)
        return dict(safetensors_file.open_tensors(path)), None
    if path.suffix == ".npz":
        return npy.open_npz(path)
    if path.suffix in PICKLE_SUFFIXES:
        return pickles.open_state_dict(path)
    if path.suffix == ".onnx" and path.is_file():
        onnx_guard.check_onnx_file(path)
        raise UsageError(
            f"{path} is an ONNX model: a program with its weights under names that its exporter chose. "
            "Give the checkpoint that it was made from."
        )
    raise UsageError(f"A weights file ends in .safetensors, .npz, {', '.join(PICKLE_SUFFIXES)}. Got {path}.")


def _has_checksums(path: Path) -> bool:
    """Whether the format has checksums that detect a flipped bit."""
    if path.suffix == ".safetensors":
        return safetensors_file.has_checksum(path)
    return detect_kind(path) == "zip" and ZipArchive(path).has_checksums()


def _check_memory(path: Path, count: int) -> None:
    """Refuse what cannot fit before it is read: a header can claim any size."""
    limit = machine_memory()
    if limit is not None and count > limit:
        raise ResourceError(
            f"The tensors of {path} take {count:,} bytes, and this machine has {limit:,} bytes of memory. "
            "Take a smaller model, or a machine with more memory."
        )


def unwrap_state_dict(
    content: Mapping[Any, object], where: str, order: tuple[str, ...], notes: list[str]
) -> dict[str, Tensor]:
    """The innermost dictionary of tensors, without prefixes that all names share.

    Args:
        order: keys of networks, in order of preference, if there are several.
        notes: gets a note for each choice.

    Raises:
        DamagedFileError: it holds anything but tensors.
        UsageError: it holds networks, and none of `order`.
    """
    for wrapper in WRAPPERS:
        inside = content.get(wrapper)
        if isinstance(inside, Mapping):
            if wrapper.endswith("_ema"):
                notes.append(f"{wrapper} was read: the averaged weights")
            return unwrap_state_dict(inside, where, order, notes)
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
        return _take_backbone(unwrap_state_dict(inside, where, order, notes), notes)
    for name in content:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
            raise DamagedFileError(f"{where}: a tensor is called {ascii(name)[:80]}, which is no plain name. {_ADVICE}")
    tensors = {
        name: value.detach() if value.requires_grad else value
        for name, value in content.items()
        if isinstance(value, Tensor)
    }
    if other := [name for name in content if name not in tensors]:
        raise DamagedFileError(
            f"{where} must hold tensors by name, alone or under one of {', '.join(WRAPPERS)}. "
            f"It holds something else called {', '.join(name[:80] for name in other[:3])}."
        )
    return _strip_prefixes(tensors)


def _strip_prefixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in NAME_PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return _strip_prefixes({name.removeprefix(prefix): tensor for name, tensor in tensors.items()})
    return tensors


def _take_backbone(network: dict[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    """The encoder of a network that also holds the heads of its training."""
    inside = {name: tensor for name, tensor in network.items() if name.startswith(BACKBONE_PREFIX)}
    if inside and len(inside) < len(network):
        heads = sorted({name.partition(".")[0] for name in network.keys() - inside.keys()})
        notes.append(f"{len(network) - len(inside)} tensors beside the backbone were left out: {', '.join(heads[:8])}")
    return {name.removeprefix(BACKBONE_PREFIX): tensor for name, tensor in inside.items()} or network


# -- Folders of other libraries: config.json, and the weights in one file or in several


@dataclass(frozen=True, kw_only=True)
class ForeignFolder:
    """The descriptions beside the weights in a folder of another library."""

    path: Path
    config: dict[str, Any]
    """config.json or open_clip_config.json."""
    preprocessor: dict[str, Any]
    """preprocessor_config.json; empty if there is none."""
    notes: tuple[str, ...] = ()
    """Which parts were ignored."""


def is_foreign_folder(path: Path) -> bool:
    """Whether a folder is one of transformers, timm or OpenCLIP, by its config.json.

    Raises:
        DamagedFileError: config.json cannot be trusted, and there is no manifest of a bundle, whose check says why.
    """
    path = Path(path)
    if not any((path / name).is_file() for name in CONFIG_FILES):
        return False
    try:
        content = _read_config(path).fields
    except DamagedFileError:
        if (path / MANIFEST).is_file():
            return False
        raise
    named = isinstance(content.get("model_type"), str) or isinstance(content.get("architecture"), str)
    return named or "model_cfg" in content


def make_origin_fields(info: Mapping[str, object]) -> dict[str, str]:
    """Fields that Vitrail adds to a config.json of another library: its name, licence and repository of the weights.

    Args:
        info: metadata as in a bundle; licence and repository are taken from it, if they are there.
    """
    origin = {name: str(info[name]) for name in ("licence", "repository") if info.get(name)}
    return {WRITTEN_BY_KEY: "vitrail", **origin}


def is_written_by_vitrail(config: Mapping[str, Any]) -> bool:
    """Whether Vitrail wrote a config.json; the family's card then does not give the weights' origin."""
    return config.get(WRITTEN_BY_KEY) == "vitrail"


def read_foreign_folder(path: Path) -> ForeignFolder:
    """The descriptions in a folder of another library.

    Raises:
        DamagedFileError: config.json is missing or not JSON text.
    """
    config, processor_path = _read_config(path), path / PREPROCESSOR_FILE
    preprocessor = strict_json.read_json(processor_path) if processor_path.is_file() else {}
    return ForeignFolder(path=path, config=config.fields, preprocessor=preprocessor, notes=config.notes)


def read_folder_of_file(path: Path) -> ForeignFolder:
    """The descriptions beside a weights file, if it has the name of one in such a folder; else empty ones."""
    if path.name in WEIGHT_FILES and is_foreign_folder(path.parent):
        return read_foreign_folder(path.parent)
    return ForeignFolder(path=path, config={}, preprocessor={})


def open_folder_weights(path: Path, match: str | None = None, network: str | None = None) -> WeightsContent:
    """Every tensor of a folder.

    Args:
        match, network: as in `open_weights_file`.

    Raises:
        DamagedFileError: there are no weights, or the files do not hold what their index lists.
        UsageError: there is no such network.
    """
    for name in WEIGHT_FILES:
        if (path / name).is_file():
            return open_weights_file(path / name, match, network)
    for name in INDEX_FILES:
        if (path / name).is_file():
            if network is not None:
                raise UsageError(f"{path} holds one model, not several networks. Leave network={network!r} out.")
            return _open_shards(path / name)
    raise DamagedFileError(f"{path} holds no weights. It must hold one of {', '.join((*WEIGHT_FILES, *INDEX_FILES))}.")


def _read_config(path: Path) -> strict_json.ForeignConfig:
    for name in CONFIG_FILES:
        if (path / name).is_file():
            return strict_json.read_foreign_config(path / name)
    raise DamagedFileError(f"{path} has no {CONFIG_FILES[0]}. Give the weights file itself, or the whole folder.")


def _open_shards(index: Path) -> WeightsContent:
    """The tensors of several files, each of which must hold exactly what the index lists."""
    listed = strict_json.read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(file, str) for file in listed.values()):
        raise DamagedFileError(f"{index} must hold weight_map, the file of every tensor. Use another copy.")
    tensors: dict[str, Tensor] = {}
    notes: dict[str, None] = {}
    for file in dict.fromkeys(listed.values()):
        if Path(file).name != file:
            raise DamagedFileError(f"{index} names the file {file!r}, which does not lie beside it. Use another copy.")
        opened = open_weights_file(index.parent / file)
        expected = {name for name, place in listed.items() if place == file}
        if differing := sorted(expected ^ opened.tensors.keys()):
            raise DamagedFileError(
                f"{index.parent / file} does not hold what {index.name} lists: {', '.join(differing[:4])}. "
                "Some of the files are of another version; copy the folder again."
            )
        tensors.update(opened.tensors)
        notes.update(dict.fromkeys(opened.notes))
    return WeightsContent(tensors=tensors, notes=list(notes))
