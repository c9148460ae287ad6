"""`vitrail export`: a MODEL as a file of a graph, web page or another library's files, verified before it is kept."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import UInt

from ..checkpoints.bundle import find_ensemble, list_members
from ..checkpoints.decision_versions import TRAINED
from ..checkpoints.model_card import UNLABELED_KEY
from ..data.decoding.decode import decode_image, read_file_bytes, read_image
from ..data.source import ImageInput
from ..errors import DataError, UsageError
from ..evaluate.precision import find_changed_labels, get_scores
from ..export import build, case_file, triton
from ..export.browser_page import BrowserPage, describe_for_page, explain_no_page, is_single_file
from ..export.browser_proof import BrowserProof, ProofFile, find_missing_tools, prove_page
from ..export.browser_runtime import load_runtime
from ..export.build import ExportFormat
from ..export.ensemble import decisions_in_file
from ..export.quantize import EXPORT_PRECISIONS, ExportPrecision, check_precision_support, export_reduced_precision
from ..export.redecide import rewrite_onnx, rewrite_pt2
from ..export.verify import (
    PrecisionAgreement,
    VerificationResult,
    predict_with_model,
    preprocess_decoded,
    verify_file,
)
from ..files import atomic
from ..formatting import format_count
from ..model.vit import ViT
from ..predict.image_paths import expand_image_paths
from ..predict.predictor import Predictor, PredictorMember
from ..randomness import derive
from ..spec import ImageSpec
from ..train.run_folder import first_run_folder
from . import conversion, export_formats
from .evaluation import LabelledImages, load_held_out
from .mlflow_model import export_mlflow
from .open_model import ModelInfo, find_model, parse_choice
from .prediction import open_predictor

EXPORT_TARGETS: tuple[ExportFormat | Literal["web", "triton", "mlflow"] | conversion.ConversionTarget, ...] = (
    *build.EXPORT_FORMATS,
    "web",
    "triton",
    "mlflow",
    *conversion.CONVERSION_TARGETS,
)
NUM_AGREEMENT_IMAGES = 500
"""Images on which a reduced-precision file is compared with the model."""


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The written model and its verification."""

    path: Path
    """The file or folder."""
    to: str
    difference: float
    """Largest difference of two scores; for another library's files of two outputs."""
    num_images: int
    """Images that were compared."""
    num_changed: int = 0
    """Images near a threshold with another decision."""
    agreement: PrecisionAgreement | None = None
    """Agreement of a reduced-precision file with float32, and its speed."""
    proof: BrowserProof | None = None
    """Of a web page, if a browser has answered images with it."""
    notes: tuple[str, ...]
    """The verification in words, and notes about the file."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of onnx, openvino and pt2 files, and of web pages.

    Raises:
        UsageError: no such precision, or an option that does not apply to it.
    """

    resize: bool = False
    """Let the file take images of any size."""
    precision: ExportPrecision = "float32"
    """Precision of the matrix products."""
    calibrate: str | Path | None = None
    """Image, folder, pattern or @list.txt for the calibration of int8; None takes the run's training images."""
    force: bool = False
    """Keep a reduced-precision file even if too many decisions differ from float32."""
    runtime: Path | None = None
    """Of web: the file of onnxruntime-web."""
    fetch: bool = False
    """Of web: download onnxruntime-web."""
    prove: bool = False
    """Of web: keep no page that headless Chromium has not proved."""

    def __post_init__(self) -> None:
        if self.precision not in EXPORT_PRECISIONS:
            raise UsageError(f"A precision is one of {', '.join(EXPORT_PRECISIONS)}. Got {self.precision!r}.")
        if self.calibrate is not None and self.precision != "int8":
            raise UsageError(f"Only int8 is fitted to pictures. Got --calibrate with --precision {self.precision}.")
        if self.force and self.precision == "float32":
            raise UsageError("A float32 file answers as the model does or is not kept; there is nothing to --force.")


DEFAULT_EXPORT_OPTIONS = ExportOptions()


def export_model(
    model_name: str,
    to: str,
    out: Path | None = None,
    options: ExportOptions = DEFAULT_EXPORT_OPTIONS,
    trained_on: object | None = None,
) -> ExportResult:
    """Write a model in another format, compare its predictions, and keep it if they agree.

    Args:
        model_name: a run folder, a bundle, a published classifier.
        to: one of `EXPORT_TARGETS`; or a file whose ending is that of one, which is then `out`.
        out: the file or folder to write; by default in the run's `exports/`, or beside another model.
        options: of onnx, openvino and pt2 files.
        trained_on: the object that the run was trained on, if it was one.

    Raises:
        UsageError: no such target, `out` exists, the target cannot express a part of the model, or int8 has no
            calibration images.
        DamagedFileError: the written model's predictions differ; nothing is kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    to, out, taken = conversion.name_format(to, out, EXPORT_TARGETS)
    exported = _export_as(model_name, to, out, options, trained_on)
    return replace(exported, notes=(taken, *exported.notes)) if taken else exported


def _export_as(
    model_name: str, to: str, out: Path | None, options: ExportOptions, trained_on: object | None
) -> ExportResult:
    known = parse_choice(to, EXPORT_TARGETS, "A model can be exported as")
    is_run = _find_plan(Path(model_name)) is not None
    if known != "web" and (options.runtime is not None or options.fetch or options.prove):
        raise UsageError(f"--runtime, --fetch and --prove are for web, whose pages run in a browser. Got --to {to}.")
    if known == "onnx" or known == "openvino" or known == "pt2" or known == "web" or known == "triton":
        ending = "" if options.precision == "float32" else f"-{options.precision}"
        ending += {"web": ".html", "triton": "-triton", "openvino": ".xml"}.get(known, f".{known}")
        beside = conversion.default_conversion_path(model_name, "bundle")  # called NAME-bundle
        default = beside.with_name(f"{beside.name.removesuffix('-bundle')}{ending}")
        if is_run:
            default = Path(model_name) / "exports" / f"model{ending}"
        if known == "web":
            return _export_page(model_name, out or default, options, trained_on)
        if known == "triton":
            return _export_repository(model_name, out or default, options, trained_on)
        pooled = (out or default).with_name(f"{(out or default).stem}-cases.onnx")
        atomic.check_new_path(pooled)
        result = _export_file(model_name, known, out or default, options, trained_on)
        return _add_case_file(model_name, result, pooled, trained_on) if known == "onnx" else result
    if options != DEFAULT_EXPORT_OPTIONS:
        holders = ", ".join(build.EXPORT_FORMATS)
        raise UsageError(f"--resize and --precision are for {holders} and triton, which hold a graph. Got --to {to}.")
    if known == "mlflow":
        return _export_mlflow(model_name, out, trained_on)
    default = conversion.default_conversion_path(model_name, known)
    if is_run:
        default = Path(model_name) / "exports" / conversion.add_extension(to, known)
    path = out or default
    conversion.check_conversion_path(path, known)
    model_info = find_model(model_name)
    try:
        converted = conversion.convert_model(model_info, known, path)
    except UsageError as error:
        advice = export_formats.find_support(model_info, known).advise() if is_run else ""
        raise UsageError(f"{error}{advice}") from error
    compared = f"compared on {converted.num_images} random pictures"
    compared += f": outputs differ by at most {converted.difference:.2g}"
    unlike_run = measure_losses(model_name, model_info, converted.model, known, trained_on)
    return ExportResult(
        path=converted.path, to=to, difference=converted.difference, num_images=converted.num_images,
        notes=(compared, *converted.notes, *unlike_run),
    )  # fmt: skip


def _export_mlflow(model_name: str, out: Path | None, trained_on: object | None) -> ExportResult:
    """Write a folder that MLflow opens."""
    if out is None:
        beside = conversion.default_conversion_path(model_name, "bundle")  # called NAME-bundle
        out = beside.with_name(f"{beside.name.removesuffix('-bundle')}-mlflow")
        if (Path(model_name) / "plan.toml").is_file():
            out = Path(model_name) / "exports" / "mlflow"
    spec = open_predictor(model_name, "cpu").spec
    decoded, origin = load_comparison_images(Path(model_name), spec, False, trained_on)
    proof = export_mlflow(model_name, out, decoded)
    opened = f'mlflow.pyfunc.load_model("{out}") opens it, where vitrail and pandas are installed'
    notes = (str(proof), origin, opened)
    return ExportResult(path=out, to="mlflow", difference=proof.difference, num_images=proof.num_images, notes=notes)


def measure_losses(
    model_name: str, model_info: ModelInfo, model: ViT, to: str, trained_on: object | None = None
) -> tuple[str, ...]:
    """How far what a reader of another library's files makes of images is from the run's predictions, as a note.

    Nothing for a bundle, for outputs without names, and for features.

    Such a reader takes one view, the softmax or sigmoid of the outputs, the likeliest class or labels from 0.5 on, and
    begins the centre crop as its library does.

    Args:
        model: as read back.
    """
    if to == "bundle" or not model_info.classes or UNLABELED_KEY in model_info.info:
        return ()
    predictor = open_predictor(model_name, "cpu")
    decoded, origin = load_comparison_images(Path(model_name), predictor.spec, False, trained_on)
    task = predictor.task
    their_spec = replace(predictor.spec, crop_start="down" if to == "transformers" else "even")
    plain = PredictorMember(model=model, spec=their_spec, classes=predictor.classes, task=task)
    theirs, ours = (
        predict_with_model(one, preprocess_decoded(decoded, one.spec)) for one in (plain, predictor.single_member())
    )
    difference = float(np.abs(get_scores(theirs).astype(np.float64) - get_scores(ours)).max())
    what = {"classification": "softmax of its outputs", "multilabel": "sigmoid of its outputs"}.get(task, "outputs")
    text = f"the {what} and the answers of vitrail predict differ by at most {difference:.2g} {origin}"
    if task == "regression":
        return (text,)
    changed, noun = int(find_changed_labels(theirs, ours).sum()), "label" if task == "classification" else "answer"
    return (f"{text}: {changed:,} of {len(decoded):,} {noun}s are others in {to}",)


def _export_file(
    model_name: str, kind: ExportFormat, out: Path, options: ExportOptions, trained_on: object | None
) -> ExportResult:
    build.check_export_path(out, kind)
    check_precision_support(kind, options.precision)
    predictor = _open_exportable(model_name)
    calibration: list[DecodedArray] = []
    fitted = ""
    if options.precision == "int8":
        calibration, fitted = load_calibration_images(Path(model_name), predictor.spec, options.calibrate, trained_on)
    count = NUM_COMPARISON_IMAGES if options.precision == "float32" else NUM_AGREEMENT_IMAGES
    images, origin = load_comparison_images(Path(model_name), predictor.spec, options.resize, trained_on, count)
    if options.precision != "float32":
        agreed = export_reduced_precision(
            predictor, kind, options.precision, out, images, calibration, options.resize, options.force
        )
        notes = [note for note in (str(agreed), origin, fitted) if note]
        return ExportResult(
            path=out, to=kind, difference=agreed.difference, num_images=agreed.num_images, agreement=agreed,
            notes=tuple(notes),
        )  # fmt: skip
    proof, resized = build.export_file(predictor, kind, out, images, options.resize)
    proofs, notes = [proof], [str(proof), origin]
    if resized is not None:
        proofs.append(resized)
        notes.append(f"resizing by itself, {resized}")
    notes += [note.removesuffix(".") for note in predictor.notes]
    return ExportResult(
        path=out, to=kind, difference=max(one.difference for one in proofs), num_images=proof.num_images,
        num_changed=max(one.num_changed for one in proofs), notes=tuple(notes),
    )  # fmt: skip


def _add_case_file(model_name: str, result: ExportResult, path: Path, trained_on: object | None) -> ExportResult:
    """Write the file that pools a case beside that of a model, if the model answers cases; else change nothing."""
    predictor = open_predictor(model_name, "cpu")
    if predictor.case_pool is None:
        return result
    member = predictor.single_member()
    decoded, _ = load_comparison_images(Path(model_name), member.spec, False, trained_on)
    model_file = build.reopen_file(result.path, "onnx")
    with atomic.make_draft(path) as draft:
        case_file.write_case_file(member, draft)
        proof = case_file.verify_case_file(draft, model_file, member, preprocess_decoded(decoded, member.spec))
        atomic.commit_draft(draft, path)
    compared = str(proof).replace("pictures", "cases")
    return replace(result, notes=(*result.notes, f"cases are pooled by {path.name}, {compared}"))


def _export_page(model_name: str, out: Path, options: ExportOptions, trained_on: object | None) -> ExportResult:
    """Write a web page around an ONNX file, and prove it in a browser where there is one."""
    if options.resize:
        raise UsageError("A web page resizes pictures by itself, as the run does. Leave out --resize.")
    if out.exists():
        raise UsageError(f"{out} exists already and is not overwritten. Choose another name or move it away.")
    check_precision_support("onnx", options.precision)
    missing = find_missing_tools()
    if options.prove and missing:
        raise UsageError(f"A page is proved in a browser, which needs {missing}. Without --prove it is kept unproved.")
    predictor = _open_exportable(model_name)
    if refusal := explain_no_page(predictor.task):
        raise UsageError(refusal)
    runtime = load_runtime(options.runtime, options.fetch)
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder, atomic.make_draft(out) as draft:
        onnx = Path(folder) / "model.onnx"
        plain = replace(options, runtime=None, fetch=False, prove=False)
        verified = _export_file(model_name, "onnx", onnx, plain, trained_on)
        if len(list(onnx.parent.iterdir())) > 1:
            raise UsageError(f"A web page holds a model of at most {build.MAX_EMBEDDED_BYTES:,} bytes. This has more.")
        name = Path(model_name).resolve().name
        description = describe_for_page(predictor, name, _read_licence(model_name))
        BrowserPage(model=onnx.read_bytes(), description=description, runtime=runtime).write(draft)
        proof, proved = None, f"not proved in a browser, which needs {missing}; then --prove does"
        if not missing:
            files, origin = load_proof_files(Path(model_name), predictor.spec, trained_on)
            proof = prove_page(draft, predictor, files, options.precision, options.force)
            proved = f"{proof}, {origin}"
        atomic.commit_draft(draft, out)
    notes = [*verified.notes, proved]
    if not is_single_file(out):
        notes.append(f"browsers open a folder from a server only, such as: python -m http.server --directory {out}")
    difference = verified.difference if proof is None else max(verified.difference, proof.exact.difference)
    return replace(verified, path=out, to="web", difference=difference, proof=proof, notes=tuple(notes))


def _export_repository(model_name: str, out: Path, options: ExportOptions, trained_on: object | None) -> ExportResult:
    """Write a model repository of Triton around an ONNX file."""
    atomic.check_new_path(out)
    predictor = _open_exportable(model_name)
    name = triton.choose_model_name(Path(model_name).resolve().name)
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder, atomic.make_draft(out) as draft:
        onnx = Path(folder) / "model.onnx"
        verified = _export_file(model_name, "onnx", onnx, options, trained_on)
        triton.write_repository(onnx, draft, name, predictor.classes)
        atomic.commit_draft(draft, out)
    served = f"Triton serves it from this folder, by requests for the model {name}"
    return replace(verified, path=out, to="triton", notes=(*verified.notes, served))


def _open_exportable(model_name: str) -> Predictor:
    """The predictor of a model, or of several whose mean a file can decide on; raises UsageError for others."""
    predictor = open_predictor(model_name, "cpu")
    decisions_in_file(predictor)
    return predictor


def _read_licence(model_name: str) -> str:
    """The licence of the weights, of an ensemble that of its first model; empty if unknown."""
    ensemble = find_ensemble(Path(model_name))
    return find_model(model_name if ensemble is None else str(list_members(ensemble)[0]), quiet=True).licence


def _find_plan(model_path: Path) -> Path | None:
    """The run folder whose data a model is tried on, of folds that of the first; None for another model."""
    run = first_run_folder(model_path)
    return run if (run / "plan.toml").is_file() else None


@dataclass(frozen=True, kw_only=True)
class DecidedExport:
    """An exported file that was given another decision."""

    path: Path
    decision: str
    """The name of the decision."""
    changed: tuple[str, ...]
    """Tensors of the graph with other values."""
    unchanged: int
    """Tensors that were compared by their SHA-256 and stayed as they were."""
    sha256: str
    """Of those."""
    verification: VerificationResult
    """The file beside the run, which decides so."""
    origin: str
    """Of the pictures that were compared."""

    def __str__(self) -> str:
        what = f"changed {', '.join(self.changed)}" if self.changed else "changed nothing but the name"
        return (
            f"{self.path} decides as {self.decision}: {what}; "
            f"{format_count(self.unchanged, 'other tensor is', 'other tensors are')} the same ({self.sha256[:8]}). "
            f"{str(self.verification).capitalize()}, {self.origin}."
        )

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "path": str(self.path),
            "decision": self.decision,
            "changed": list(self.changed),
            "unchanged": self.unchanged,
            "sha256": self.sha256,
            "pictures": self.verification.num_images,
            "decided_otherwise": self.verification.num_changed,
        }


def write_decision_into(model_name: Path, into: Path, trained_on: object | None = None) -> DecidedExport:
    """Give an exported file the decision in use, change nothing else in it, and prove that it decides as the run.

    Args:
        model_name: the run folder.
        into: an ONNX file or a torch.export package of its model; it is replaced in one step, or stays.
        trained_on: the object that the run was trained on, if it was one.

    Raises:
        UsageError: no such file, one of another model or of an older version, or a model of numbers.
        DamagedFileError: the file is damaged, or would decide otherwise than the run.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    if into.suffix not in (".onnx", ".pt2"):
        raise UsageError(f"--into takes a file that vitrail export wrote, NAME.onnx or NAME.pt2. Got {into}.")
    predictor = open_predictor(model_name, "cpu")
    member = predictor.single_member()
    if member.task == "regression":
        raise UsageError(f"{into} gives numbers and decides nothing: their ranges are in the run (predict --sets).")
    rewrite = rewrite_onnx if into.suffix == ".onnx" else rewrite_pt2
    rewritten = rewrite(into, member.decisions, build.hash_model(member.model))
    any_size = rewritten.metadata.size == "any"
    decoded, origin = load_comparison_images(model_name, member.spec, any_size, trained_on)
    with atomic.write_file(into) as file:
        file.write(rewritten.data)
        file.flush()
        opened = build.reopen_file(Path(file.name), "onnx" if into.suffix == ".onnx" else "pt2")
        proof = verify_file(opened.run, opened.metadata, member, preprocess_decoded(decoded, member.spec))
    return DecidedExport(
        path=into, decision=member.decisions.version or TRAINED, changed=rewritten.changed,
        unchanged=rewritten.unchanged, sha256=rewritten.sha256, verification=proof, origin=origin,
    )  # fmt: skip


# -- Images for verification and for int8 calibration: the run's own, if they are available.

NUM_COMPARISON_IMAGES = 100
"""Images on which a float32 file is compared with the model."""
NUM_CALIBRATION_IMAGES = 128
"""Images for the ranges of activations."""
DecodedArray = UInt[np.ndarray, "H W C"]


def load_comparison_images(
    model_path: Path,
    spec: ImageSpec,
    any_size: bool,
    trained_on: object | None,
    max_images: int = NUM_COMPARISON_IMAGES,
) -> tuple[list[DecodedArray], str]:
    """Decoded images for the verification, and a note on their origin: a run's held-out or synthetic images.

    Args:
        any_size: let synthetic images have another size than the model's.
        trained_on: the object that the run was trained on, if it was one.
        max_images: most images of the run, evenly spaced in its split.
    """
    why = "no run has held out any"
    if (run := _find_plan(model_path)) is not None:
        try:
            labelled = load_held_out(run, None, trained_on)
            if images := _sample_images(labelled, spec, max_images):
                return images, f"on pictures of the run's own {labelled.split} split"
            why = "none of the run's own can be read"
        except (DataError, UsageError) as error:
            why = f"those of the run are not here ({error})"
    size = (spec.height * 3 // 2, spec.width * 5 // 4) if any_size else spec.size
    return list(draw_synthetic_images(*size, spec.channels, white=spec.white)), f"on drawn pictures, because {why}"


def load_calibration_images(
    model_path: Path, spec: ImageSpec, source: str | Path | None, trained_on: object | None
) -> tuple[list[DecodedArray], str]:
    """Decoded images for int8 calibration, and a note on their origin: `source`, or the run's training images.

    Args:
        source: an image, folder, pattern or @list.txt.

    Raises:
        UsageError: no source and no training images here; synthetic images would calibrate badly.
        DataError: an image of the source cannot be read.
    """
    if source is not None:
        paths = expand_image_paths([str(source)])
        places = np.linspace(0, len(paths) - 1, min(NUM_CALIBRATION_IMAGES, len(paths))).astype(np.int64)
        images = [decode_image(paths[place], spec) for place in places.tolist()]
        return images, f"calibrated on {format_count(len(images), 'picture')} of {source}"
    missing = "name some with --calibrate FOLDER"
    if (run := _find_plan(model_path)) is None:
        raise UsageError(
            f"int8 is fitted to pictures like those to come, and {model_path} is no run that has some: {missing}."
        )
    try:
        images = _sample_images(load_held_out(run, "train", trained_on), spec, NUM_CALIBRATION_IMAGES)
    except (DataError, UsageError) as error:
        raise UsageError(
            f"int8 is fitted to the run's training pictures, which are not here ({error}): {missing}."
        ) from error
    if not images:
        raise UsageError(f"int8 is fitted to the run's training pictures, and none of them can be read: {missing}.")
    return images, f"calibrated on {format_count(len(images), 'training picture')} of the run"


MAX_PROOF_FILES = 200
"""Image files that a browser answers."""
MAX_DECODED_FILES = 50
"""Files that the browser decodes by itself, further ones beside these."""
EXACT_KINDS = ("PNG", "NPY")
"""Formats that the page decodes by itself; those of others are compared as arrays."""
BROWSER_KINDS = ("JPEG", "WebP", "GIF", "BMP")


def load_proof_files(model_path: Path, spec: ImageSpec, trained_on: object | None) -> tuple[list[ProofFile], str]:
    """Image files for a page to answer, and a note on their origin: a run's held-out or synthetic images."""
    why = "no run has held out any"
    if (run := _find_plan(model_path)) is not None:
        try:
            labelled = load_held_out(run, None, trained_on)
            files = list(_iter_proof_files(labelled, spec))
            if any(file.is_exact for file in files):
                if len(files) == 1:  # the page saves a table of two pictures or more
                    files.append(files[0]._replace(name=f"again-{files[0].name}"))
                return files, f"on pictures of the run's own {labelled.split} split"
            why = "none of the run's own can be read"
        except (DataError, UsageError) as error:
            why = f"those of the run are not here ({error})"
    size = (spec.height * 3 // 2, spec.width * 5 // 4)
    drawn = draw_synthetic_images(*size, spec.channels, white=spec.white)
    levels = (spec.low, spec.high) == (0, spec.white)
    stored = drawn if levels else spec.low + drawn / spec.white * (spec.high - spec.low)
    files = [ProofFile(f"{place:04}.npy", _encode_npy(values), True) for place, values in enumerate(stored)]
    return files, f"on drawn pictures, because {why}"


def _iter_proof_files(labelled: LabelledImages, spec: ImageSpec) -> Iterator[ProofFile]:
    """Evenly spaced images as files, skipping unreadable ones."""
    images, decoded = labelled.images, 0
    for index in np.linspace(0, len(images) - 1, min(MAX_PROOF_FILES, len(images))).astype(np.int64).tolist():
        try:
            stored = read_image(images[index], spec)
            decode_image(images[index], spec)
        except DataError:  # the run may have skipped it too; the others are enough
            continue
        data = _fetch_bytes(images[index])
        if stored.kind in EXACT_KINDS and data is not None:
            yield ProofFile(f"{index:06}.{stored.kind.lower()}", data, True)
        elif stored.alpha is None:
            yield ProofFile(f"{index:06}.npy", _encode_npy(stored.values), True)
        if stored.kind in BROWSER_KINDS and data is not None and decoded < MAX_DECODED_FILES:
            decoded += 1
            yield ProofFile(f"{index:06}.{stored.kind.lower()}", data, False)


def _fetch_bytes(image: ImageInput) -> bytes | None:
    """The bytes of an image's file; None for an array."""
    if isinstance(image, Path):
        return read_file_bytes(image)
    data = None if isinstance(image, np.ndarray) else image.fetch()
    return data if isinstance(data, bytes) else None


def _encode_npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


def draw_synthetic_images(
    height: int, width: int, channels: int, count: int = NUM_COMPARISON_IMAGES, white: int = 255
) -> UInt[np.ndarray, "n H W C"]:
    """Deterministic random images with soft and sharp edges and noise."""
    generator = np.random.default_rng(derive(0, "pictures to compare an export on"))
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = np.zeros((count, height, width, channels))
    for _ in range(4):
        turn, speed, phase = generator.uniform(0, 2 * np.pi, (3, count, 1, 1, channels))
        along = np.cos(turn) * x[None, :, :, None] + np.sin(turn) * y[None, :, :, None]
        waves += np.sin(2 * speed * np.pi * along + phase)
    sharp = generator.uniform(size=(count, 1, 1, 1)) < 0.5
    noise = generator.normal(0, generator.uniform(0, 60, (count, 1, 1, 1)), waves.shape)
    levels = 128 + 30 * np.where(sharp, 3 * np.sign(waves), waves) + noise
    return np.rint(levels * (white / 255)).clip(0, white).astype(np.uint8 if white == 255 else np.uint16)


def _sample_images(labelled: LabelledImages, spec: ImageSpec, max_images: int) -> list[DecodedArray]:
    """Decode evenly spaced images, skipping unreadable ones."""
    images, decoded = labelled.images, []
    for index in np.linspace(0, len(images) - 1, min(max_images, len(images))).astype(np.int64).tolist():
        with suppress(DataError):  # the run may have skipped it too; the others are enough
            decoded.append(decode_image(images[index], spec))
    return decoded
