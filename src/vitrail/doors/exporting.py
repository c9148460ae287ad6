"""From a MODEL to files that answer as it does: one for ONNX Runtime or PyTorch, or a folder of another library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..export import build
from ..export.build import ExportFormat
from ..export.quantize import EXPORT_PRECISIONS, ExportPrecision, check_precision_support, export_reduced_precision
from ..export.verify import PrecisionAgreement
from . import converting
from .export_pictures import PICTURES, Decoded, to_calibrate_on, to_compare_on
from .models import find
from .predicting import open_predictor

TARGETS = (*build.EXPORT_FORMATS, *converting.TARGETS)
MORE_PICTURES = 500
"""On which a file of fewer bits is compared with the model."""


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
    agreement: PrecisionAgreement | None = None
    """Of a file of fewer bits, how often it decides as float32 does, and how fast."""
    notes: tuple[str, ...]
    """The proof in words, and what a person should know about the file."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How a file is to be made.

    Raises:
        UsageError: no such precision, or pictures to calibrate something that is not int8.
    """

    resize: bool = False
    """Let it take pictures of any size."""
    precision: ExportPrecision = "float32"
    """In which its matrices are multiplied."""
    calibrate: str | Path | None = None
    """A picture, folder, pattern or @list.txt that int8 is fitted to; None takes the run's training pictures."""
    force: bool = False
    """Keep a file of fewer bits although too many decisions differ from float32."""

    def __post_init__(self) -> None:
        if self.precision not in EXPORT_PRECISIONS:
            raise UsageError(f"A precision is one of {', '.join(EXPORT_PRECISIONS)}. Got {self.precision!r}.")
        if self.calibrate is not None and self.precision != "int8":
            raise UsageError(f"Only int8 is fitted to pictures. Got --calibrate with --precision {self.precision}.")
        if self.force and self.precision == "float32":
            raise UsageError("A float32 file answers as the model does or is not kept; there is nothing to --force.")


AS_IT_IS = Wish()


def export(
    given: str, to: str, out: Path | None = None, wish: Wish = AS_IT_IS, trained_on: object | None = None
) -> Exported:
    """Write a model in another form, compare its answers, and keep it if they are equal.

    Args:
        given: a run folder, a bundle, a published classifier.
        to: one of `TARGETS`.
        out: the file or folder to make; None makes one in the run's `exports/`, or beside another model.
        wish: of onnx and pt2 files.
        trained_on: the object that a run was trained on, if it was one.

    Raises:
        UsageError: no such target, `out` exists, the target cannot express a part of the model, or int8 has no pictures
            to be fitted to.
        DamagedFileError: what was written answers otherwise; nothing is kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    kind = _kind(to)
    place = out or default_out(given, to, wish.precision)
    if kind is not None:
        return _as_file(given, kind, place, wish, trained_on)
    if wish != AS_IT_IS:
        raise UsageError(f"--resize and --precision are for onnx and pt2, whose files hold a graph. Got --to {to}.")
    converted = converting.convert(find(given), converting.target(to), place)
    compared = f"compared on {converted.pictures} random pictures: outputs differ by at most {converted.difference:.2g}"
    return Exported(
        path=converted.path, to=to, difference=converted.difference, pictures=converted.pictures,
        notes=(compared, *converted.notes),
    )  # fmt: skip


def default_out(given: str, to: str, precision: ExportPrecision = "float32") -> Path:
    """Where an export goes when nobody says: into the run's `exports/`, or beside another model."""
    kind = _kind(to)
    ending = "" if precision == "float32" else f"-{precision}"
    if (Path(given) / "plan.toml").is_file():
        name = f"model{ending}.{kind}" if kind else converting.with_ending(to, converting.target(to))
        return Path(given) / "exports" / name
    if kind is None:
        return converting.default_out(given, converting.target(to))
    beside = converting.default_out(given, "bundle")  # called NAME-bundle
    return beside.with_name(f"{beside.name.removesuffix('-bundle')}{ending}.{kind}")


def _kind(to: str) -> ExportFormat | None:
    """Which file a target is; None for a folder or file of another library.

    Raises:
        UsageError: there is no such target.
    """
    if to not in TARGETS:
        raise UsageError(f"A model can be exported as {', '.join(TARGETS[:-1])} or {TARGETS[-1]}. Got {to!r}.")
    return next((known for known in build.EXPORT_FORMATS if known == to), None)


def _as_file(given: str, kind: ExportFormat, out: Path, wish: Wish, trained_on: object | None) -> Exported:
    build.check_export_path(out, kind)
    check_precision_support(kind, wish.precision)
    if wish.precision != "float32":
        return _as_smaller_file(given, kind, out, wish, trained_on)
    member = open_predictor(given, "cpu").alone()
    pictures, whose = to_compare_on(Path(given), member.spec, wish.resize, trained_on, PICTURES)
    proof, resized = build.export_file(member, kind, out, pictures, wish.resize)
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


def _as_smaller_file(given: str, kind: ExportFormat, out: Path, wish: Wish, trained_on: object | None) -> Exported:
    member = open_predictor(given, "cpu").alone()
    calibration: list[Decoded] = []
    fitted = ""
    if wish.precision == "int8":
        calibration, fitted = to_calibrate_on(Path(given), member.spec, wish.calibrate, trained_on)
    pictures, whose = to_compare_on(Path(given), member.spec, wish.resize, trained_on, MORE_PICTURES)
    agreed = export_reduced_precision(member, kind, wish.precision, out, pictures, calibration, wish.resize, wish.force)
    notes = tuple(note for note in (str(agreed), whose, fitted) if note)
    return Exported(
        path=out, to=kind, difference=agreed.difference, pictures=agreed.pictures, agreement=agreed, notes=notes
    )
