"""Teach an anomaly run without training: good pictures are added to its bank or removed from it, as a kept version.

A version is a function of the pictures that it is made of: adding one and removing it again gives the same bytes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float16
from torch import Tensor

from .. import config
from ..checkpoints import bundle, bundle_weights, decision_versions
from ..checkpoints.bundle import BundleInfo
from ..data.content_hashes import hash_contents
from ..data.labels.defects import GOOD_WORDS
from ..data.parallel import ImageName, prepare_batches
from ..data.preprocess import preprocess_image
from ..data.source import ImageInput, parse_task, spelling_key
from ..errors import DamagedFileError, DataError, UsageError
from ..evaluate.conformal import smallest_p_value
from ..evaluate.decisions import Decisions, fit_anomaly_decisions, read_decisions
from ..evaluate.inference import FeatureExtractor, InferenceSettings, SingleImages, forward_batch, inference_mode
from ..files.lock import Lock
from ..formatting import format_count
from ..model.patch_bank import mean_largest, nearest_distances
from ..train import seen_images
from ..train.calibration_file import describe_odd_images, write_calibration
from ..train.finetune import bank_store, coreset
from ..train.finetune.bank_store import GoodPictures
from ..train.run_folder import RunFolder
from .deciding import describe_now, find_finished_run, put_to_use
from .prediction import choose_inference

FEATURE_BATCH = 64
MAX_NAMED = 3
"""Pictures that a message names."""
MEMBERS_KEY, CHANGE_KEY = "pictures", "teaching"
"""In the file of a version: the pictures of its bank, and what was changed."""


@dataclass(frozen=True, kw_only=True)
class TeachResult:
    """A version of a bank, beside the one that was in use before."""

    version: str
    """Its name; it is in use now."""
    before: str
    """The version that was in use."""
    added: int
    forgotten: int
    pictures: int
    """Good pictures of the bank."""
    patches: int
    """Patches of the bank."""
    alpha: float
    """The share of good pictures that may be called defects."""
    alpha_before: float
    least_alpha: float
    """The smallest alpha that so many pictures, or groups, allow."""
    alarm_score: float
    """The score above which a picture is called a defect."""
    alarm_score_before: float
    called_before: int = 0
    """Added pictures that the version before calls defects."""
    path: Path | None = None
    """The file of the version; None for one that was there already."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **{name: value for name, value in vars(self).items() if name not in ("path", "notes")},
            "path": None if self.path is None else str(self.path),
            "notes": list(self.notes),
        }


def teach(
    path: Path,
    images: Sequence[ImageInput | bytes] = (),
    forget: Sequence[str] = (),
    group: str = "",
    alpha: float | None = None,
    keep: str = "",
    by: str = "",
    use: str = "",
    device: str = "auto",
) -> TeachResult:
    """Make a new version of the bank of an anomaly run and put it to use, or put an earlier one to use.

    Args:
        path: a run folder.
        images: good pictures to add.
        forget: ids of pictures to remove, as calibration.csv of the run and bank/NAME.csv list them.
        group: of a run with groups, the one that all added pictures belong to, such as their lot.
        alpha: the share of good pictures that may be called defects from now on; None for that asked for before.
        keep: the name of the version; by default bank-1, bank-2, ...
        by: who teaches, for the record.
        use: an earlier version to put to use instead, "training" for the training's own.

    Raises:
        UsageError: a run of another task, a name that is taken or not there, nothing to do, or a run in use.
        DataError: a picture cannot be read or is in the bank already, an id that is not there, or too few are left.
        DamagedFileError: a file of the model or of the bank is damaged.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    run = find_finished_run(path)
    info = _read_info(run, use)
    if use:
        if len(images) or len(forget) or keep or group or alpha is not None:
            raise UsageError(f"--use {use} puts a version to use that is there already. Give it alone.")
        before = _describe_version(run, _read_info(run))
        left_out = put_to_use(run, use, by)
        return replace(_describe_version(run, _read_info(run)), before=before.version, alpha_before=before.alpha,
                       alarm_score_before=before.alarm_score, notes=left_out)  # fmt: skip
    if not len(images) and not len(forget) and alpha is None:
        raise UsageError("Give good pictures to add, a list to --forget, another --alpha, or --use NAME.")
    if alpha is not None and not 0 < alpha < 1:
        raise UsageError(f"--alpha must lie between 0 and 1, such as 0.05. Got {alpha:g}.")
    name = decision_versions.check_decision_name(keep or _next_name(info))
    if name in decision_versions.list_decision_names(info.listed):
        raise UsageError(f"A version {name} is kept already and is not overwritten. Choose another name.")
    current = _read_decisions(run, info)
    old = bank_store.load_pictures(run.path, _read_members(run, info))
    _check_groups(run, old, group, len(images))
    left = _forget_pictures(run, old, forget)
    taught = _TaughtImages(run, info, images, name, group, device)
    new, notes = taught.leave_out_known(old)
    plan = run.read_plan()
    most = coreset.MAX_NUMBERS // (old.features.shape[1] * old.features.shape[2])
    if len(left) + len(new) > most:
        raise DataError(
            f"The bank of {run.path} can hold {format_count(most, 'picture')} of this size, and would have "
            f"{len(left) + len(new):,}. Remove some with --forget, or train again with a smaller --image-size."
        )
    joined = bank_store.join_pictures(left, new) if len(new) else left
    asked = _read_record(run, info).get(CHANGE_KEY, {}).get("alpha", plan.decisions.alpha) if alpha is None else alpha
    settings = replace(plan.decisions, alpha=float(asked))
    labels = joined.number_groups()
    _check_promise(run, joined, current, settings.alpha, labels, bool(forget))
    rows, scores = coreset.fill_bank(joined.features, labels, plan.model, plan.seed, torch.device(taught.device))
    decisions = fit_anomaly_decisions(settings, scores, labels)
    called = _count_called(taught.predict_bank(), new.features, current, plan.model.grid.patches)
    if len(new):
        expected = current.alpha * len(new)
        notes.append(
            f"{called:,} of the {format_count(len(new), 'added picture')} would have been called defects before, of "
            f"{expected:.2g} expected."
        )
    with Lock(run.path):
        if len(new):
            bank_store.save_pictures(run.path, name, new)
            seen_images.add_seen_images(run, hash_contents([image for image in images if not isinstance(image, bytes)]))
        calibration_file = run.path / bank_store.STORE_FOLDER / f"{name}.csv"
        write_calibration(calibration_file, joined.ids, labels, scores)
        notes += describe_odd_images(calibration_file)
        bundle_weights.save_bank_rows(run.bundle, name, rows)
        change = {"before": info.decision, "added": list(new.ids), "forgotten": sorted(forget), "alpha": settings.alpha}
        content = {
            "format": decision_versions.DECISION_FORMAT,
            "name": name,
            "task": info.task,
            "classes": list(info.classes),
            "decisions": config.write(replace(decisions, version=name)),
            "data": info.trained_info.get("data", {}),
            "by": by,
            "time": describe_now(),
            decision_versions.BANK_KEY: len(rows),
            MEMBERS_KEY: joined.list_members(),
            CHANGE_KEY: change,
        }
        kept = decision_versions.add_decision_file(run.bundle, name, content, with_bank=True)
    put_to_use(run, name, by)
    result = _describe_version(run, _read_info(run))
    if decisions.alpha > settings.alpha:
        notes.append(_describe_larger_alpha(decisions, settings.alpha))
    return replace(
        result, before=info.decision, added=len(new), forgotten=len(old) - len(left), alpha_before=current.alpha,
        alarm_score_before=current.alarm_score, called_before=called, path=kept,
        notes=(*notes, *_describe_stale_exports(run, path)),
    )  # fmt: skip


def read_forget_list(path: Path) -> list[str]:
    """The ids of a list of pictures to forget: its column id, such as that of calibration.csv.

    Raises:
        DataError: no such file, or no such column.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise DataError(f"The list of pictures to forget is needed at {path}. {error.strerror}.") from error
    table = csv.DictReader(io.StringIO(text, newline=""))
    if "id" not in (table.fieldnames or ()):
        raise DataError(f"{path} must have a column id, as calibration.csv of the run has. Got {table.fieldnames}.")
    return [line["id"] for line in table if line["id"]]


def require_good_folders(folder: Path, images: Sequence[Path]) -> None:
    """Refuse a folder that has pictures of other kinds beside the good ones.

    Raises:
        UsageError: folders in it are called good, ok, ... and others not.
    """
    names = {image.parent.name for image in images if image.parent != folder}
    good = {name for name in names if spelling_key(name) in GOOD_WORDS}
    if good and names - good:
        raise UsageError(
            f"{folder} has pictures in {sorted(names - good)[0]}/ beside {sorted(good)[0]}/. Only good ones are "
            "taught: name their folder."
        )


class _TaughtImages:
    """The pictures to add, read and turned into features by the training's model."""

    def __init__(
        self, run: RunFolder, info: BundleInfo, images: Sequence[ImageInput | bytes], version: str, group: str,
        device: str,
    ):  # fmt: skip
        loaded = bundle_weights.load_bundle(run.bundle)
        self.model, self.device = loaded.model, choose_inference(device, "float32", 1).device
        self._run, self._version, self._group = run, version, group
        names: list[ImageName] = []
        digests: list[str] = []
        shape = info.architecture
        features = [torch.empty(0, shape.input_grid.patches, shape.pooled_width, dtype=torch.float16)]
        extractor = SingleImages(FeatureExtractor(self.model.to(self.device)))
        settings = InferenceSettings(device=self.device)
        with inference_mode(extractor):
            for some, prepared, _ in prepare_batches(
                images, FEATURE_BATCH, lambda image: preprocess_image(image, info.spec), skip_bad=False
            ):
                names += some
                digests += [bank_store.hash_pixels(image) for image in prepared]
                values, _ = forward_batch(extractor, torch.stack(prepared), info.spec, settings)
                features.append(coreset.pack_patches(values.cpu(), shape))
        self._names, self._digests, self._features = names, digests, torch.cat(features)

    def predict_bank(self) -> Tensor:
        """The patches of the bank in use."""
        assert self.model.head.bank is not None
        return self.model.head.bank.rows.cpu()

    def leave_out_known(self, old: GoodPictures) -> tuple[GoodPictures, list[str]]:
        """The pictures whose contents are new, with ids of their own; and a note about the others.

        Raises:
            DataError: none of them is new.
        """
        known: dict[str, str] = dict(zip(old.digests, old.ids, strict=True))
        rows: list[int] = []
        copies: list[str] = []
        for row, (digest, name) in enumerate(zip(self._digests, self._names, strict=True)):
            if digest in known:
                copies.append(f"{name.path or name.id} = {known[digest]}")
            else:
                known[digest] = name.id
                rows.append(row)
        notes = []
        if copies:
            count, shown = format_count(len(copies), "picture"), ", ".join(copies[:MAX_NAMED])
            text = (
                f"{count} of {len(self._names):,} are in the bank already, or twice among these, by contents: {shown}"
            )
            text += ", ..." * (len(copies) > MAX_NAMED)
            if not rows:
                raise DataError(f"{text}. Nothing is left to add.")
            notes.append(f"{text}. They are left out.")
        taken = set(old.ids)
        ids = [self._names[row].id for row in rows]
        ids = [f"{self._version}/{id}" if id in taken else id for id in ids]
        digests = [self._digests[row] for row in rows]
        groups = None if old.groups is None else [self._group] * len(rows)
        return bank_store.sort_pictures(ids, groups, digests, self._features[rows]), notes


def _read_info(run: RunFolder, use: str = "") -> BundleInfo:
    """The notes of the model, by the version in use; of an anomaly run.

    Args:
        use: a version that will be put to use, so that the one in use may be damaged.
    """
    info = bundle.read_bundle_info(run.bundle, check_weights=False, by=use)
    if info.task != "anomaly":
        raise UsageError(
            f"teach adds good pictures to an anomaly run, and {run.path} answers {info.task}. Train again with the "
            "further pictures, or fit its thresholds anew with vitrail decide."
        )
    return info


def _read_decisions(run: RunFolder, info: BundleInfo) -> Decisions:
    return read_decisions(info.info, parse_task(info.task), info.classes, str(run.bundle))


def _read_record(run: RunFolder, info: BundleInfo) -> dict[str, Any]:
    if info.decision == decision_versions.TRAINED:
        return {}
    return dict(decision_versions.read_decision_file(run.bundle, info.decision, info.task, info.classes))


def _read_members(run: RunFolder, info: BundleInfo) -> list[list[str]] | None:
    """The pictures of the bank in use; None for those of the training."""
    members = _read_record(run, info).get(MEMBERS_KEY)
    if members is not None and not all(isinstance(one, list) and len(one) == 3 for one in members):
        raise DamagedFileError(f"{run.bundle} does not say which pictures its bank has. Use another copy.")
    return members


def _next_name(info: BundleInfo) -> str:
    taken = decision_versions.list_decision_names(info.listed)
    return next(name for number in range(1, len(taken) + 2) if (name := f"bank-{number}") not in taken)


def _check_groups(run: RunFolder, old: GoodPictures, group: str, added: int) -> None:
    """Check that a group is named where the run has groups, and only there."""
    if old.groups is not None and added and not group:
        example = f", such as {old.groups[0]!r}" if len(old) else ""
        raise UsageError(
            f"The promise of {run.path} is of whole groups{example}. Say which one these pictures belong to, one at a "
            "time: --group NAME."
        )
    if group and (old.groups is None or not added):
        why = "counts every picture by itself" if old.groups is None else "is given no pictures"
        raise UsageError(f"--group {group} names the group of added pictures, and {run.path} {why}. Leave it out.")


def _forget_pictures(run: RunFolder, old: GoodPictures, forget: Sequence[str]) -> GoodPictures:
    if unknown := sorted(set(forget) - set(old.ids)):
        shown = ", ".join(unknown[:MAX_NAMED]) + ", ..." * (len(unknown) > MAX_NAMED)
        raise DataError(
            f"The bank of {run.path} has no {shown} to forget. Its pictures are called as in "
            f"{bank_store.STORE_FOLDER}/NAME.csv, or calibration.csv of the training, such as {old.ids[0]}."
        )
    return bank_store.select_pictures(old, [k for k, id in enumerate(old.ids) if id not in set(forget)])


def _check_promise(
    run: RunFolder, joined: GoodPictures, current: Decisions, alpha: float, labels: np.ndarray, forgets: bool
) -> None:
    """Refuse to forget so many pictures that a promise which holds now could not be kept."""
    left = len(np.unique(labels))
    things = "good pictures" if joined.groups is None else "groups of good pictures"
    if left < 2:
        raise DataError(f"{left} of the {things} of {run.path} would be left, and a promise takes at least two.")
    least = 1 / (left + 1)
    if forgets and current.alpha <= alpha < least - 1e-9:
        raise DataError(
            f"{left:,} {things} would be left, which promise {least:.2%} false alarms at best, and {run.path} promises "
            f"{alpha:.2%}. Forget fewer, add others in the same command, or promise less: --alpha {least:.2g}."
        )


def _describe_larger_alpha(decisions: Decisions, alpha: float) -> str:
    things = "groups" if decisions.calibration_weights else "good pictures"
    count = round(1 / decisions.alpha) - 1
    return (
        f"{count:,} {things} promise at most {decisions.alpha:.1%} false alarms, 1 / (n + 1), so defects are decided "
        f"by that. {alpha:.1%} takes {int(np.ceil(1 / alpha - 1 - 1e-9)):,}."
    )


def _count_called(rows: Tensor, features: Float16[Tensor, "n N P"], current: Decisions, patches: int) -> int:
    """How many pictures the version before calls defects.

    Args:
        patches: of one tile.
    """
    scores = [float(mean_largest(nearest_distances(values.float(), rows), patches)) for values in features]
    return int(current.find_defects(current.p_values(np.array(scores, np.float32))).sum())


def _describe_version(run: RunFolder, info: BundleInfo) -> TeachResult:
    """The version in use."""
    decisions, change = _read_decisions(run, info), _read_record(run, info).get(CHANGE_KEY, {})
    return TeachResult(
        version=info.decision, before=str(change.get("before", info.decision)), added=0, forgotten=0,
        pictures=len(decisions.calibration), patches=info.architecture.bank_size, alpha=decisions.alpha,
        alpha_before=decisions.alpha, alarm_score=decisions.alarm_score, alarm_score_before=decisions.alarm_score,
        least_alpha=smallest_p_value(decisions.calibration, decisions.calibration_weights),
    )  # fmt: skip


def _describe_stale_exports(run: RunFolder, path: Path) -> list[str]:
    """A sentence for each exported file of the run, which holds the bank of before."""
    kinds = {".onnx": "onnx", ".pt2": "pt2"}
    files = sorted(file for file in (run.path / "exports").glob("*") if file.suffix in kinds)
    return [
        f"{file} holds the bank of before. Write it again: vitrail export {path} --to {kinds[file.suffix]} --out NEW"
        for file in files
    ]
