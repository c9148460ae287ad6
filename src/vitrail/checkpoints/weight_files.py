"""Open weights files and folders of other libraries, and unwrap them to a plain dictionary of tensors."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import DamagedFileError, ResourceError, UsageError
from ..files import npy, onnx_guard, pickles, safetensors_file, strict_json
from ..files.memory import copy_mapped_tensors, machine_memory
from ..files.sniff import detect_kind
from ..files.zip_archive import ZipArchive
from ..formatting import format_count
from .foreign_folder import (
    WEIGHT_FILES,
    ForeignFolder,
    is_foreign_folder,
    is_written_by_vitrail,
    read_foreign_folder,
)

EMA_WRAPPERS = ("model_ema", "state_dict_ema", "ema_state_dict", "ema", "ema_model")
"""Keys under which training scripts save averaged weights."""
WRAPPERS = (*EMA_WRAPPERS, "state_dict", "model_state_dict", "model", "module")
"""Keys under which training scripts save a model's tensors; a single dictionary of tensors may have any other."""
NAME_PARTS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts of names that torch.compile, FSDP and activation checkpointing insert anywhere."""
NAME_PREFIX = "module."
"""Prefix that data-parallel training puts before every name."""
AVERAGE_COUNT = "n_averaged"
"""Counter of torch's AveragedModel beside the weights, whose names all begin with NAME_PREFIX."""
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
OTHER_SUFFIXES = {
    ".h5": "Keras",
    ".keras": "Keras",
    ".msgpack": "Flax",
    ".pdparams": "PaddlePaddle",
    ".pkl": "a whole pickled object, such as fastai's learn.export()",
    ".pb": "TensorFlow",
    ".tflite": "TensorFlow Lite",
    ".mlmodel": "Core ML",
    ".gguf": "llama.cpp",
}
"""Endings of weights that are not read, and whose they are."""
MAX_NAME_LENGTH = 512
"""Letters of the longest tensor name that is accepted."""
INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
"""Indexes of weights in several files."""
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
        content.tensors = _take_under(content.tensors, network, str(path), content.notes)
    return content


def _take_under(tensors: dict[str, Tensor], network: str, where: str, notes: list[str]) -> dict[str, Tensor]:
    """The tensors whose names begin with a network's name, such as the attribute of a training module."""
    inside = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{network}.")}
    if not inside:
        raise UsageError(f"{where} holds one model, not several networks. Leave network={network!r} out.")
    beside = sorted({name.partition(".")[0] for name in tensors.keys() - inside.keys()})
    left = f"; left out: {', '.join(beside[:8])}" if beside else ""
    notes.append(f"{network} was read, the tensors whose names begin with it{left}")
    return _strip_prefixes({name.removeprefix(f"{network}."): tensor for name, tensor in inside.items()})


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
    other = OTHER_SUFFIXES.get(path.suffix)
    hint = f", a file of {other}: save its weights as safetensors there" if other else ""
    raise UsageError(f"A weights file ends in .safetensors, .npz, {', '.join(PICKLE_SUFFIXES)}. Got {path}{hint}.")


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
    """The innermost dictionary of tensors, without what wrappers add to names.

    Args:
        order: keys of networks, in order of preference, if there are several.
        notes: gets a note for each choice.

    Raises:
        DamagedFileError: it holds anything but tensors, or a part of a sharded model.
        UsageError: it holds networks, and none of `order`.
    """
    if "ds_version" in content and not _is_whole(content.get("module")):
        raise DamagedFileError(f"{where} holds no whole model. {pickles.DEEPSPEED_ADVICE}")
    models = _list_models(content)
    wrappers = [name for name in WRAPPERS if isinstance(content.get(name), Mapping)]
    if len(order) == 1 and order[0] in models:  # named by the caller
        wrappers = [] if order[0] in _ANY_NETWORK else [order[0]]
    elif not wrappers and not _ANY_NETWORK.intersection(content) and len(models) == 1:
        wrappers = models
    if wrappers:
        wrapper, others = wrappers[0], [name for name in models if name != wrappers[0]]
        average = ", the averaged weights" if wrapper in EMA_WRAPPERS else ""
        if average or others or wrapper not in WRAPPERS:
            notes.append(f"{wrapper} was read{average}" + (_choice_hint(others) if others else ""))
        inside = content[wrapper]
        assert isinstance(inside, Mapping)
        return unwrap_state_dict(inside, where, order, notes)
    if len(models) > 1 and not _ANY_NETWORK.intersection(models):
        raise UsageError(
            f"{where} holds {format_count(len(models), 'model')}. Name one with network=: {', '.join(models)}."
        )
    held = [name for name in content if name in _ANY_NETWORK and isinstance(content[name], Mapping)]
    chosen = next((name for name in order if name in held), None)
    if held and chosen is None:
        raise UsageError(
            f"{where} holds no network called {' or '.join(order)}. Name one with network=: {', '.join(held)}."
        )
    if chosen is not None:
        others = [name for name in held if name != chosen]
        notes.append(f"{chosen} was read" + (_choice_hint(others) if others else ""))
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


def _list_models(content: Mapping[Any, object]) -> list[str]:
    """Keys under which dictionaries of tensors lie, themselves or inside a wrapper."""
    seen: dict[int, bool] = {}  # a hostile file has one dictionary under many keys

    def is_state_dict(inside: object) -> bool:
        if id(inside) not in seen:
            seen[id(inside)] = (
                isinstance(inside, Mapping)
                and bool(inside)
                and all(isinstance(name, str) and isinstance(value, Tensor) for name, value in inside.items())
            )
        return seen[id(inside)]

    return [
        name
        for name, inside in content.items()
        if isinstance(name, str)
        and isinstance(inside, Mapping)
        and (is_state_dict(inside) or any(is_state_dict(inside.get(wrapper)) for wrapper in WRAPPERS))
    ]


def _is_whole(module: object) -> bool:
    """Whether no tensor of a dictionary is empty, as those of parameters that lie in parts are."""
    return isinstance(module, Mapping) and all(t.numel() for t in module.values() if isinstance(t, Tensor))


def _choice_hint(others: Sequence[str]) -> str:
    return f", not {' or '.join(others)}: network= chooses"


def _strip_prefixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without parts of names that wrappers add; as they are where two would get one name."""
    plain = {
        ".".join(part for part in name.split(".") if part not in NAME_PARTS): tensor for name, tensor in tensors.items()
    }
    tensors = plain if len(plain) == len(tensors) else tensors
    named = [name for name in tensors if name != AVERAGE_COUNT]
    if named and all(name.startswith(NAME_PREFIX) for name in named):
        return _strip_prefixes({name.removeprefix(NAME_PREFIX): tensors[name] for name in named})
    return tensors


def _take_backbone(network: dict[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    """The encoder of a network that also holds the heads of its training."""
    inside = {name: tensor for name, tensor in network.items() if name.startswith(BACKBONE_PREFIX)}
    if inside and len(inside) < len(network):
        heads = sorted({name.partition(".")[0] for name in network.keys() - inside.keys()})
        left_out = format_count(
            len(network) - len(inside), "tensor beside the backbone was", "tensors beside the backbone were"
        )
        notes.append(f"{left_out} left out: {', '.join(heads[:8])}")
    return {name.removeprefix(BACKBONE_PREFIX): tensor for name, tensor in inside.items()} or network


# -- Folders of other libraries: the weights in one file or in several


def read_folder_of_file(path: Path) -> ForeignFolder:
    """The descriptions beside a weights file that has the name of one in such a folder, or in an `.npz` that Vitrail
    wrote; else empty ones.
    """
    if path.name in WEIGHT_FILES and is_foreign_folder(path.parent):
        return read_foreign_folder(path.parent)
    comment = npy.read_npz_comment(path) if path.suffix == ".npz" and path.is_file() else b""
    noted = strict_json.parse_json(comment, f"The comment in {path}") if comment.startswith(b"{") else {}
    return ForeignFolder(path=path, config=noted if is_written_by_vitrail(noted) else {}, preprocessor={})


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
