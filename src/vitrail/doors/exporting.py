"""From a MODEL to files that answer as it does: one for PyTorch alone, or a folder of another library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ..data.decode import decode
from ..data.source import Picture
from ..errors import DataError, UsageError
from ..export import making
from ..export.making import Kind
from ..randomness import derive
from ..spec import ImageSpec
from . import converting
from .evaluation import held_out
from .models import find
from .predicting import open_predictor

TARGETS = (*making.KINDS, *converting.TARGETS)
PICTURES = 100
"""On which a file is compared with the model."""
LATER = ("onnx",)
Decoded = UInt8[np.ndarray, "H W C"]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, and how it was proved."""

    path: Path
    """The file or folder."""
    to: str
    difference: float
    """Largest difference of two scores, or for a folder of two outputs."""
    pictures: int
    """That were compared."""
    changed: int = 0
    """Pictures on a threshold that the file decides otherwise."""
    notes: tuple[str, ...]
    """The proof in words, and what a person should know about the file."""


def export(
    given: str, to: str, out: Path | None = None, resize: bool = False, trained_on: object | None = None
) -> Exported:
    """Write a model in another form, compare its answers, and keep it if they are equal.

    Args:
        given: a run folder, a bundle, a published classifier.
        to: one of `TARGETS`.
        out: the file or folder to make; None makes one in the run's `exports/`, or beside another model.
        resize: let a pt2 file take pictures of any size.
        trained_on: the object that a run was trained on, if it was one.

    Raises:
        UsageError: no such target, `out` exists, or the target cannot express a part of the model.
        DamagedFileError: what was written answers otherwise; nothing is kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    kind = _kind(to)
    place = out or default_out(given, to)
    if kind is not None:
        return _as_file(given, kind, place, resize, trained_on)
    if resize:
        raise UsageError(f"--resize is for pt2, whose file holds a graph. Got --to {to}.")
    converted = converting.convert(find(given), converting.target(to), place)
    compared = f"compared on {converted.pictures} random pictures: outputs differ by at most {converted.difference:.2g}"
    return Exported(
        path=converted.path, to=to, difference=converted.difference, pictures=converted.pictures,
        notes=(compared, *converted.notes),
    )  # fmt: skip


def default_out(given: str, to: str) -> Path:
    """Where an export goes when nobody says: into the run's `exports/`, or beside another model."""
    kind = _kind(to)
    if (Path(given) / "plan.toml").is_file():
        name = f"model.{kind}" if kind else converting.with_ending(to, converting.target(to))
        return Path(given) / "exports" / name
    if kind is None:
        return converting.default_out(given, converting.target(to))
    beside = converting.default_out(given, "bundle")  # called NAME-bundle
    return beside.with_name(f"{beside.name.removesuffix('-bundle')}.{kind}")


def _kind(to: str) -> Kind | None:
    """Which file a target is; None for a folder or file of another library.

    Raises:
        UsageError: there is no such target.
    """
    if to in LATER:
        raise UsageError(f"Export to {to} arrives with a later version. --to pt2 writes the same graph for PyTorch.")
    if to not in TARGETS:
        raise UsageError(f"A model can be exported as {', '.join(TARGETS[:-1])} or {TARGETS[-1]}. Got {to!r}.")
    return next((known for known in making.KINDS if known == to), None)


def _as_file(given: str, kind: Kind, out: Path, resize: bool, trained_on: object | None) -> Exported:
    making.check_free(out, kind)
    member = open_predictor(given, "cpu").alone()
    pictures, whose = _pictures(Path(given), member.spec, resize, trained_on)
    proof, resized = making.make(member, kind, out, pictures, resize)
    notes = [str(proof), whose]
    if resized is not None:
        notes.append(f"resizing by itself, {resized}")
    if member.number_format != "float32":
        notes.append(f"the model was evaluated in {member.number_format}; this file computes in float32")
    proofs = [proof] if resized is None else [proof, resized]
    return Exported(
        path=out, to=kind, difference=max(one.difference for one in proofs), pictures=proof.pictures,
        changed=max(one.changed for one in proofs), notes=tuple(notes),
    )  # fmt: skip


def _pictures(model: Path, spec: ImageSpec, any_size: bool, trained_on: object | None) -> tuple[list[Decoded], str]:
    """Decoded pictures to compare on, and whose they are: those that a run held out, or drawn ones."""
    why = "no run has held out any"
    if (model / "plan.toml").is_file():
        try:
            labelled = held_out(model, None, trained_on)
            places = np.linspace(0, len(labelled.rows) - 1, min(PICTURES, len(labelled.rows))).astype(np.int64)
            found = list(_readable((labelled.source.pictures[row] for row in labelled.rows[places].tolist()), spec))
            if found:
                return found, f"on pictures of the run's own {labelled.split} split"
            why = "none of the run's own can be read"
        except (DataError, UsageError) as error:
            why = f"those of the run are not here ({error})"
    size = (spec.height * 3 // 2, spec.width * 5 // 4) if any_size else spec.size
    return list(drawn(*size, spec.channels)), f"on drawn pictures, because {why}"


def _readable(pictures: Iterable[Picture], spec: ImageSpec) -> Iterator[Decoded]:
    for picture in pictures:
        try:
            yield decode(picture, spec)
        except DataError:  # the run may have left it out, too; the others are enough
            continue


def drawn(height: int, width: int, channels: int, count: int = PICTURES) -> UInt8[np.ndarray, "n H W C"]:
    """Pictures of soft and sharp edges and noise, the same each time."""
    generator = np.random.default_rng(derive(0, "pictures to compare an export on"))
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = np.zeros((count, height, width, channels))
    for _ in range(4):
        turn, speed, phase = generator.uniform(0, 2 * np.pi, (3, count, 1, 1, channels))
        along = np.cos(turn) * x[None, :, :, None] + np.sin(turn) * y[None, :, :, None]
        waves += np.sin(2 * speed * np.pi * along + phase)
    sharp = generator.uniform(size=(count, 1, 1, 1)) < 0.5
    noise = generator.normal(0, generator.uniform(0, 60, (count, 1, 1, 1)), waves.shape)
    return np.rint(128 + 30 * np.where(sharp, 3 * np.sign(waves), waves) + noise).clip(0, 255).astype(np.uint8)
