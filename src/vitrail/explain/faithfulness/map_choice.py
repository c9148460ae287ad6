"""Choice of a model's default explanation method by a measured check against baselines that do not use the model.

Which method is right depends on the model: relevance points at the evidence of one and beside that of another of nearly
the same shape. So a training measures a few methods on validation images, and the default is one whose order of patches
is more faithful than centre prior and noise, and not less than edges; without such a method no map is shown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Shaped
from torch import Tensor

from ... import config
from ...data.source import Task
from ...errors import DamagedFileError, UsageError
from ...model.tokens import pad_to_patches
from ...model.vit import ViT
from ..attribution import patch_grid_of
from ..map_scale import NOT_CHECKED
from ..methods import BANK_METHODS, METHODS, MethodOptions, default_method
from ..recorder import inference_mode
from .benchmark import decide_verdict, paired_differences
from .curves import (
    TASK_SCORES,
    MapFunction,
    RemovalMode,
    ScoreFunction,
    compute_maps,
    outputs_without_patches,
    rank_patches,
    removal_fill,
    removal_modes_for,
)
from .localization import BASELINES, EDGES, baseline_methods, row_correlation

MAP_CHOICE_KEY = "map_choice"
"""Its key in the notes of a bundle."""
SLOWEST = "integrated"
CANDIDATES = ("relevance", SLOWEST)
"""The first is the cheapest: one pass forwards and back, where integrated gradients take at least 32."""
MAX_CHECK_IMAGES, MIN_CHECK_IMAGES, CHECK_CHUNK = 32, 16, 8
ALIKE_CORRELATION = 0.8
"""Mean correlation of the maps of two classes of an image from which on they are called alike."""


@dataclass(frozen=True, kw_only=True)
class MethodGap:
    """`few_patches_gap` of a method or baseline, the mean over images and removal modes; large is faithful."""

    name: str
    gap: float


TOO_SLOW = (
    "here it takes longer than the {seconds:.0f} s that a training has for it, and vitrail explain RUN --faithfulness "
    "makes up for it"
)


@dataclass(frozen=True, kw_only=True)
class MapChoice:
    """The default explanation method of a trained model, and what it was chosen by."""

    method: str
    """A name in `methods.METHODS` or `BANK_METHODS`; empty where none passed."""
    pictures: int
    """Validation images of the check; 0 where there was none."""
    reason: str = ""
    """Why there was no check."""
    gaps: tuple[MethodGap, ...] = ()
    passed: tuple[str, ...] = ()
    """Methods that are truer than centre and noise, and that edges are not truer than."""
    like_edges: tuple[str, ...] = ()
    """Those of them that are not truer than edges."""
    class_correlation: float | None = None
    """Mean correlation of the maps of the two most probable outputs, by the chosen or the first method."""

    def describe(self, method: str | None = None) -> str:
        """What the check says of a map by a method, by default the chosen one; a sentence or two."""
        name = method or self.method or CANDIDATES[0]
        if not self.pictures:
            return f"{NOT_CHECKED}: {self.reason}."
        measured = ", ".join(f"{one.name} {one.gap:+.3f}" for one in self.gaps)
        figures = (
            f"score with the patches marked most less without them, {self.pictures} validation pictures: {measured}"
        )
        alike = ""
        if self.class_correlation is not None and self.class_correlation >= ALIKE_CORRELATION:
            alike = (
                f" The maps of two classes of a picture are nearly the same (correlation "
                f"{self.class_correlation:.2f}): they show where the model looks, not what speaks for one class rather "
                "than another."
            )
        if name in self.like_edges:
            return (
                f"{name} orders patches better than centre and noise do, and edges in the pictures do it as well: it "
                f"may show edges ({figures}).{alike}"
            )
        if name in self.passed:
            return f"{name} orders patches better than edges, centre and noise do ({figures}).{alike}"
        if not self.method:
            return f"No map of this model passed the check against edges, centre and noise ({figures}).{alike}"
        return f"{name} did not pass the check against edges, centre and noise, or was not measured ({figures}).{alike}"


def choose_map_method(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    outputs: Float[np.ndarray, "B K"],
    task: Task,
    seconds: float,
    groups: Shaped[np.ndarray, " B"] | None = None,
    seed: int = 0,
) -> MapChoice:
    """Measure CANDIDATES and the baselines, and choose the most faithful one of those that pass.

    A method passes if `decide_verdict` calls it truer than centre and noise, with dropped patches and with painted
    ones, and edges not truer than it. Where the evidence is the only thing in an image, edges are as good as any map.

    Args:
        images: normalised, on the model's device; at most MAX_CHECK_IMAGES are used.
        outputs: of the model for these images; the most probable output is explained.
        seconds: about how long it may take; with time for fewer than MIN_CHECK_IMAGES the slowest method is left out,
            or nothing is measured.
        groups: group of each image, such as its patient.
    """
    default = default_method(model.config)
    if default not in CANDIDATES:
        why = "they are its score, patch by patch" if model.config.head == "bank" else "it has no outputs"
        why = "its answers are masks" if model.config.is_dense else why
        return MapChoice(method=default, pictures=0, reason=why)
    if len(images) < MIN_CHECK_IMAGES:
        why = f"it takes {MIN_CHECK_IMAGES} validation pictures, and there are {len(images)}"
        return MapChoice(method=default, pictures=0, reason=why)
    if patch_grid_of(model, images).patches < 2:
        return MapChoice(method=default, pictures=0, reason="a picture is a single patch")
    order = torch.from_numpy(np.argsort(-outputs, axis=1, kind="stable")).to(images.device)  # likeliest first
    methods = {**{name: map_function(name) for name in CANDIDATES}, **baseline_methods(seed)}
    ways = [way for way in removal_modes_for(model.config) if way != "blur"]
    parts: dict[str, dict[RemovalMode, list[np.ndarray]]] = {name: {way: [] for way in ways} for name in methods}
    maps: dict[str, list[np.ndarray]] = {name: [] for name in methods}
    began, measured, slow_seconds, left_out = time.perf_counter(), 0, 0.0, 0.0
    for start in range(0, min(len(images), MAX_CHECK_IMAGES), CHECK_CHUNK):
        elapsed = time.perf_counter() - began - left_out
        needed = MIN_CHECK_IMAGES if measured < MIN_CHECK_IMAGES else measured + CHECK_CHUNK
        if measured and elapsed * needed / measured > seconds:
            if measured >= MIN_CHECK_IMAGES or SLOWEST not in maps:
                break
            left_out = slow_seconds  # of a model without evidence its integral takes very many steps
            del methods[SLOWEST], parts[SLOWEST], maps[SLOWEST]
            if (elapsed - left_out) * needed / measured > seconds:
                break
        chunk = images[start : start + CHECK_CHUNK]
        classes = order[start : start + CHECK_CHUNK, 0]
        for name in list(methods):
            before = time.perf_counter()
            try:
                maps[name].append(compute_maps(methods[name], model, chunk, classes))
            except UsageError:  # a map that is not finite: the method cannot pass
                del methods[name], parts[name], maps[name]
            slow_seconds += time.perf_counter() - before if name == SLOWEST else 0.0
        stacked = np.concatenate([by_chunk[-1] for by_chunk in maps.values()])
        several = chunk.repeat(len(maps), 1, 1, 1), classes.repeat(len(maps))
        for way in ways:
            gaps_of_chunk = few_patches_gap(model, *several, stacked, way, TASK_SCORES[task], seed + start)
            for name, rows in zip(maps, np.split(gaps_of_chunk, len(maps)), strict=True):
                parts[name][way].append(rows)
        measured += len(chunk)
    if measured < MIN_CHECK_IMAGES:
        return MapChoice(method=default, pictures=0, reason=TOO_SLOW.format(seconds=seconds))
    gaps = {name: {way: np.concatenate(rows) for way, rows in by_way.items()} for name, by_way in parts.items()}
    own = None if groups is None else groups[:measured]
    verdicts = {
        (name, baseline): decide_verdict(paired_differences(gaps[name], gaps[baseline], seed, own))
        for name in CANDIDATES if name in gaps
        for baseline in BASELINES
    }  # fmt: skip
    passed = tuple(
        name for name in CANDIDATES if name in gaps
        and all(verdicts[name, baseline] == "truer" for baseline in BASELINES if baseline != EDGES)
        and verdicts[name, EDGES] != "less true"
    )  # fmt: skip
    means = {name: float(np.mean([rows.mean() for rows in by_way.values()])) for name, by_way in gaps.items()}
    best = max(passed, key=lambda name: means[name], default="")
    correlation, shown = None, best or default
    if outputs.shape[1] > 1 and task != "regression" and shown in maps:
        first = np.concatenate(maps[shown])[:MIN_CHECK_IMAGES]
        second = compute_maps(methods[shown], model, images[: len(first)], order[: len(first), 1])
        correlation = float(row_correlation(*(one.reshape(len(one), -1) for one in (first, second))).mean())
    return MapChoice(
        method=best,
        pictures=measured,
        gaps=tuple(MethodGap(name=name, gap=gap) for name, gap in means.items()),
        passed=passed,
        like_edges=tuple(name for name in passed if verdicts[name, EDGES] != "truer"),
        class_correlation=correlation,
    )


def few_patches_gap(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    classes: Int[Tensor, " B"],
    maps: Float64[np.ndarray, "B rows columns"],
    removal: RemovalMode,
    score: ScoreFunction,
    seed: int = 0,
) -> Float64[np.ndarray, " B"]:
    """Score with only the k most relevant patches minus the score without them, the mean over k = 1, 2, 4, ...

    Insertion minus deletion (`deletion_insertion_curves`) counts every share of the patches alike, and there a map of
    all edges does as well as one of the evidence; what a reader sees of a map is where it is strongest.
    """
    order = torch.from_numpy(rank_patches(maps, seed)).to(images.device)
    padded = pad_to_patches(images, model.config.patch) if model.config.pad else images
    fill = removal_fill(padded, model.config.patch, removal)
    counts = [2**power for power in range(order.shape[1].bit_length()) if 2**power <= max(1, order.shape[1] // 2)]
    gaps = []
    with inference_mode(model):
        for count in counts:
            parts = (order[:, :count], order[:, count:])
            shown, hidden = (
                score(outputs_without_patches(model, padded, one, removal, fill), classes) for one in parts
            )
            gaps.append(shown - hidden)
    return torch.stack(gaps).double().mean(0).cpu().numpy()


def combine_map_choices(choices: Sequence[MapChoice]) -> MapChoice:
    """The choice of several models whose maps are shown together: the first with the most frequent method."""
    method, _ = Counter(one.method for one in choices).most_common(1)[0]
    return next(one for one in choices if one.method == method)


def read_map_choice(info: Mapping[str, object], where: str) -> MapChoice | None:
    """Read the choice from the notes of a bundle; None where it has none.

    Raises:
        DamagedFileError: the note holds no choice, or names no method.
    """
    noted = info.get(MAP_CHOICE_KEY)
    if noted is None:
        return None
    try:
        if not isinstance(noted, Mapping):
            raise UsageError(f"{where}: {MAP_CHOICE_KEY} must be a table. Got {noted!r}.")
        choice = config.read(MapChoice, noted, where)
        known = {**METHODS, **BANK_METHODS}
        if choice.method and choice.method not in known:
            raise UsageError(f"{where}: the method must be one of {', '.join(known)}. Got {choice.method!r}.")
    except UsageError as error:
        raise DamagedFileError(f"{error} Use another copy.") from error
    return choice


def map_function(name: str) -> MapFunction:
    """A method with its default options; empty maps stay, and their patches are ordered by chance."""
    method = METHODS[name]

    def maps(model: ViT, images: Tensor, classes: Tensor) -> np.ndarray:
        return method.run(model, images, classes.tolist() if method.class_specific else None, MethodOptions()).values

    return maps
