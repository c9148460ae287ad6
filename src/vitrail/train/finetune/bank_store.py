"""Good pictures of an anomaly run as its bank sees them: the features of their patches, kept so that it can be filled
again, with more pictures or with fewer, without opening any of them.

Their order is that of their contents, so that a bank depends on which pictures it is filled with and on nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float16, Int64, Integer
from torch import Tensor

from ...data.splits import number_groups
from ...errors import DamagedFileError
from ...files import safetensors_file
from ...formatting import format_count

STORE_FOLDER, FEATURES = "bank", "features"
TRAINING = "training"
"""Name of the pictures that the training began with; those of each teaching have the name of its version."""
_PICTURES = "pictures"
"""In a file's header: id, group and hash of each of them."""


@dataclass(frozen=True, kw_only=True)
class GoodPictures:
    """Pictures of a bank, sorted by `digests`."""

    ids: tuple[str, ...]
    groups: tuple[str, ...] | None
    """The group of each, such as its lot; None where every picture counts by itself."""
    digests: tuple[str, ...]
    """SHA-256 of the prepared pixels of each."""
    features: Float16[Tensor, "n N P"]
    """Of their patches, by `coreset.pack_patches`."""

    def __len__(self) -> int:
        return len(self.ids)

    def number_groups(self) -> Int64[np.ndarray, " n"]:
        """The number of each picture's group, or of each picture."""
        return np.arange(len(self)) if self.groups is None else number_groups(np.array(self.groups, object))

    def list_members(self) -> list[list[str]]:
        """Hash, id and group of each, as `load_pictures` finds them again."""
        groups = self.groups or ("",) * len(self)
        return [list(one) for one in zip(self.digests, self.ids, groups, strict=True)]


def hash_pixels(image: Integer[Tensor, "C H W"]) -> str:
    """SHA-256 of a prepared image."""
    return hashlib.sha256(f"{list(image.shape)} {image.dtype}".encode() + image.numpy().tobytes()).hexdigest()


def sort_pictures(
    ids: Sequence[str], groups: Sequence[str] | None, digests: Sequence[str], features: Float16[Tensor, "n N P"]
) -> GoodPictures:
    """Pictures in the order of a bank: by their contents, copies by group and id."""
    keys = list(zip(digests, groups or ids, ids, strict=True))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return GoodPictures(
        ids=tuple(ids[k] for k in order),
        groups=None if groups is None else tuple(groups[k] for k in order),
        digests=tuple(digests[k] for k in order),
        features=features[torch.tensor(order, dtype=torch.int64)],
    )


def join_pictures(first: GoodPictures, second: GoodPictures) -> GoodPictures:
    """Both, in the order of a bank."""
    groups = None if first.groups is None or second.groups is None else [*first.groups, *second.groups]
    features = torch.cat([first.features, second.features])
    return sort_pictures([*first.ids, *second.ids], groups, [*first.digests, *second.digests], features)


def select_pictures(pictures: GoodPictures, kept: Sequence[int]) -> GoodPictures:
    """Some of them, in the same order."""
    return GoodPictures(
        ids=tuple(pictures.ids[k] for k in kept),
        groups=None if pictures.groups is None else tuple(pictures.groups[k] for k in kept),
        digests=tuple(pictures.digests[k] for k in kept),
        features=pictures.features[torch.tensor(kept, dtype=torch.int64)],
    )


def save_pictures(run: Path, name: str, pictures: GoodPictures) -> Path:
    """Write bank/NAME.safetensors of a run.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    path = Path(run) / STORE_FOLDER / f"{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    header = {_PICTURES: json.dumps({"grouped": pictures.groups is not None, "members": pictures.list_members()})}
    safetensors_file.save_tensors(path, {FEATURES: pictures.features}, header, checksum=True)
    return path


def load_pictures(run: Path, members: Sequence[Sequence[str]] | None = None) -> GoodPictures:
    """Pictures of a run's files in bank/.

    Args:
        members: as `GoodPictures.list_members`; None for those of the training.

    Raises:
        DamagedFileError: a file is missing or damaged, or does not have one of them.
    """
    training = _load_file(Path(run) / STORE_FOLDER / f"{TRAINING}.safetensors")
    if members is None:
        return training
    found: dict[str, Tensor] = dict(zip(training.digests, training.features, strict=True))
    for path in sorted((Path(run) / STORE_FOLDER).glob("*.safetensors")):
        if missing := {digest for digest, _, _ in members} - found.keys():
            others = _load_file(path)
            pairs = zip(others.digests, others.features, strict=True)
            found |= {digest: values for digest, values in pairs if digest in missing}
    if missing := {digest for digest, _, _ in members} - found.keys():
        raise DamagedFileError(
            f"{Path(run) / STORE_FOLDER} does not have {len(missing):,} of the {format_count(len(members), 'picture')} "
            "of the bank any more. Put its files back, or begin a new run."
        )
    groups = None if training.groups is None else tuple(group for _, _, group in members)
    return GoodPictures(
        ids=tuple(id for _, id, _ in members),
        groups=groups,
        digests=tuple(digest for digest, _, _ in members),
        features=torch.stack([found[digest] for digest, _, _ in members]),
    )


def _load_file(path: Path) -> GoodPictures:
    features = safetensors_file.load_tensors(path).get(FEATURES)
    try:
        header: Mapping[str, object] = json.loads(safetensors_file.read_metadata(path)[_PICTURES])
        members = header["members"]
        digests, ids, groups = zip(*members, strict=True) if members else ((), (), ())  # type: ignore[misc]
        if features is None or features.dtype != torch.float16 or features.ndim != 3 or len(features) != len(ids):
            raise ValueError("no features of each picture")
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} must hold good pictures of a bank: {error}. Use another copy.") from error
    return GoodPictures(ids=ids, groups=groups if header["grouped"] else None, digests=digests, features=features)
