"""A loss or an augmentation of one's own: tried before it is used, called by its name, and never left out silently."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitrail
from quick_fits import SETTINGS, digits, threads_kept  # noqa: F401 - a fixture
from vitrail.data.loader import InMemoryImageStore
from vitrail.errors import UsageError
from vitrail.model.registry import config_from_name
from vitrail.train.custom_functions import CustomFunctions, qualified_name
from vitrail.train.plan import Plan, Recipe

pytestmark = pytest.mark.usefixtures("threads_kept")
NAME = f"{__name__}.crossed"


def crossed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of the task, for each picture."""
    return F.cross_entropy(outputs, targets, reduction="none")


def mean_crossed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return crossed(outputs, targets).mean()


def darker(images: torch.Tensor) -> torch.Tensor:
    """Some pictures at half their brightness, drawn by torch's own generator."""
    return torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images // 2, images)


def settings(**more: object) -> dict[str, object]:
    return {**SETTINGS, "recipe.batch_size": 16, **{name.replace("__", "."): value for name, value in more.items()}}


def fitted(out: Path, **more: object) -> vitrail.Run:
    asked = {"steps": 4, "device": "cpu", "settings": settings(), "quiet": True, "out": out, **more}
    return vitrail.fit(digits(120, classes=3), **asked)


def weights(run: vitrail.Run) -> list[torch.Tensor]:
    return list(vitrail.load(run.path).state_dict().values())


def alike(first: vitrail.Run, second: vitrail.Run) -> bool:
    return all(torch.equal(one, other) for one, other in zip(weights(first), weights(second), strict=True))


def losses(run: vitrail.Run) -> list[float]:
    rows = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def try_out(
    brought: CustomFunctions, targets: np.ndarray | None = None, is_weighted: bool = False, **recipe: float
) -> None:
    """The functions asked about digits, as a training asks them before its first step."""
    pictures, numbers = digits(40, classes=3)
    held = InMemoryImageStore(torch.from_numpy(pictures)[:, None])
    shape = dataclasses.replace(config_from_name("vit_pico_patch2_8"), outputs=3)
    plan = Plan(model=shape, recipe=Recipe(batch_size=16, **recipe))
    brought.try_out(plan, held, numbers if targets is None else targets, is_weighted)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> vitrail.Run:
    """The task's own loss, without what plans add to it."""
    alone = settings(recipe__label_smoothing=0.0, recipe__class_weights="none")
    return fitted(tmp_path_factory.mktemp("plain") / "run", settings=alone)


@pytest.fixture(scope="module")
def crossed_run(tmp_path_factory) -> vitrail.Run:
    return fitted(tmp_path_factory.mktemp("crossed") / "run", loss=crossed)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_loss_of_the_task_given_as_ones_own_trains_the_same_model(plain, crossed_run, tmp_path, accumulate):
    assert losses(crossed_run) == pytest.approx(losses(plain), rel=1e-3)
    in_parts = settings(recipe__grad_accum_steps=accumulate)
    run = fitted(tmp_path / "mean", loss=mean_crossed, settings=in_parts)
    assert losses(run) == pytest.approx(losses(plain), rel=1e-3) and len(losses(run)) == 4


def test_the_plan_and_the_bundle_call_it_by_its_name(crossed_run):
    recipe, plan = crossed_run.plan.recipe, (crossed_run.path / "plan.toml").read_text()
    assert recipe.custom_loss == NAME and (recipe.label_smoothing, recipe.mixup, recipe.cutmix) == (0, 0, 0)
    assert re.search(rf'custom_loss = "{re.escape(NAME)}" +# a function was given', plan)
    assert re.search(r"label_smoothing = 0\.0 +# the loss is the program's own", plan)
    assert f"- loss: {NAME}" in (crossed_run.path / "model" / "README.md").read_text()


def test_predictions_keep_the_activation_of_the_task(crossed_run):
    pictures, _ = digits(5)
    np.testing.assert_allclose(crossed_run.predict(list(pictures)).probabilities.sum(1), 1, atol=1e-5)


@pytest.mark.wide
def test_an_own_augmentation_is_used_and_repeats_itself(plain, tmp_path):
    alone = settings(recipe__label_smoothing=0.0, recipe__class_weights="none")
    first, again = (fitted(tmp_path / name, augment=darker, settings=alone) for name in ("first", "again"))
    assert alike(first, again) and not alike(first, plain)
    assert first.plan.recipe.custom_augment == f"{__name__}.darker"


def stopped(folder: Path) -> Path:
    """A run that has lost its end: as if it had stopped after its checkpoint."""
    for path in (folder / "model", folder / "predictions"):
        shutil.rmtree(path)
    for path in folder.glob("*.html"):
        path.unlink()
    return folder


@pytest.mark.wide
def test_a_run_goes_on_with_its_function_and_never_without(tmp_path):
    data = digits(120, classes=3)
    run = fitted(tmp_path / "run", loss=crossed)
    stopped(run.path)
    with pytest.raises(UsageError, match=rf"has a loss of its own, {NAME}: a function .*\.resume\(loss=\.\.\.\)"):
        vitrail.open(run.path).resume(data, quiet=True)
    with pytest.raises(UsageError, match=rf"loss of its own, {NAME}, and loss={__name__}\.mean_crossed was given"):
        vitrail.open(run.path).resume(data, quiet=True, loss=mean_crossed)
    with pytest.raises(UsageError, match=rf"has no augment of its own, and augment={__name__}\.darker was given"):
        vitrail.open(run.path).resume(data, quiet=True, loss=crossed, augment=darker)
    again = run.resume(quiet=True)  # this program still has it
    assert (again.path / "model").is_dir()
    assert vitrail.open(run.path).extend(steps=2, source=data, quiet=True, loss=crossed).plan.recipe.steps == 6


def test_a_name_without_its_function_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(UsageError, match=r"has an augmentation of its own, mine\.blur: a function of the Python"):
        fitted(tmp_path / "run", settings=settings(recipe__custom_augment="mine.blur"))
    assert not (tmp_path / "run").exists()


def test_settings_of_the_tasks_loss_are_refused_beside_another(tmp_path):
    asked = settings(recipe__label_smoothing=0.1)
    with pytest.raises(UsageError, match=rf"softens classes and labels, and this training has a loss .*, {NAME}\."):
        fitted(tmp_path / "run", loss=crossed, settings=asked)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x, t: 1.0, r"must give a number for each picture, a tensor \[16\], or .* Got a float\."),
        (lambda x, t: x, r"Got float32 \[16, 3\]\."),
        (lambda x, t: t, r"must be of fractions, such as float32\. Got int64 \[16\]\."),
        (lambda x, t: x.sum() * torch.nan, r"is NaN or infinite on the first batch, outputs float32 \[16, 3\] and"),
        (lambda x, t: (x.argmax(1) == t).float(), r"has no gradient by the outputs, so nothing can be learnt"),
        (lambda x, t: x.detach().sum(1), r"has no gradient by the outputs"),
        (lambda x, t: torch.ones(len(t), requires_grad=True), r"has no gradient by the outputs"),
        (lambda x, t: (x - x).square().sum(1).sqrt(), r"The gradient of the loss .* is NaN or infinite"),
        (lambda x, t: x @ t, r"failed on outputs float32 \[16, 3\] and targets int64 \[16\]: RuntimeError: "),
    ],
)
def test_a_loss_that_cannot_be_learnt_from_is_refused(wrong, words):
    with pytest.raises(UsageError, match=words):
        try_out(CustomFunctions(loss=wrong))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda images: images / 255, r"must give back .* uint8 \[16, 1, 8, 8\]\. Got float32 \[16, 1, 8, 8\]\. Bring"),
        (lambda images: images[:, :, :7], r"Got uint8 \[16, 1, 7, 8\]"),
        (lambda images: images.numpy(), r"Got a ndarray"),
        (lambda images: images.flip(7), r"failed on uint8 pictures \[16, 1, 8, 8\]: IndexError: "),
    ],
)
def test_an_augmentation_that_gives_something_else_is_refused(wrong, words):
    with pytest.raises(UsageError, match=words):
        try_out(CustomFunctions(augment=wrong))


def test_what_is_refused_leaves_no_run_folder(tmp_path):
    with pytest.raises(UsageError, match=r"has no gradient by the outputs"):
        fitted(tmp_path / "run", loss=lambda outputs, targets: (outputs.argmax(1) == targets).float())
    assert not (tmp_path / "run").exists()


def test_unknown_labels_reach_an_own_loss_as_nan():
    labels = np.eye(3, dtype=np.float32)[digits(40, classes=3)[1]]
    labels[::4, 1] = np.nan

    def careless(outputs, targets):
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)

    def careful(outputs, targets):
        known = ~targets.isnan()
        losses = F.binary_cross_entropy_with_logits(outputs, targets.nan_to_num(), reduction="none")
        return (losses * known).sum(1) / known.sum(1).clamp(min=1)

    with pytest.raises(UsageError, match=r"Unknown targets are NaN; leave them out\."):
        try_out(CustomFunctions(loss=careless), labels)
    try_out(CustomFunctions(loss=careful), labels)


def test_mixed_pictures_reach_an_own_loss_with_shares_of_classes():
    seen = []

    def soft(outputs, targets):
        seen.append(targets)
        return F.cross_entropy(outputs, targets, reduction="none")

    try_out(CustomFunctions(loss=soft), mixup=0.5)
    assert seen[0].shape == (16, 3)
    torch.testing.assert_close(seen[0].sum(1), torch.ones(16))


def test_functions_are_called_by_module_and_name():
    assert qualified_name(crossed) == NAME
    assert qualified_name(functools.partial(crossed, 1)) == NAME
    assert qualified_name(torch.nn.CrossEntropyLoss()) == "torch.nn.modules.loss.CrossEntropyLoss"
    assert not CustomFunctions() and CustomFunctions(loss=crossed)


@pytest.mark.wide
def test_every_fold_is_trained_with_the_function_and_none_goes_on_without(tmp_path):
    data = digits(60, classes=3)
    run = vitrail.fit(
        data, folds=2, steps=2, loss=crossed, device="cpu", settings=settings(), quiet=True, out=tmp_path / "folds"
    )
    assert [fold.plan.recipe.custom_loss for fold in run.folds] == [NAME, NAME]
    shutil.rmtree(tmp_path / "folds" / "fold-1")  # as if it had stopped before the second
    with pytest.raises(UsageError, match=rf"has a loss of its own, {NAME}"):
        vitrail.open(run.path).resume(data, quiet=True)


def test_weights_of_pictures_reach_an_own_loss_that_has_one_for_each():
    outputs, targets, weights = (
        torch.randn(4, 3, requires_grad=True),
        torch.arange(4) % 3,
        torch.tensor([1.0, 2, 0.5, 3]),
    )
    total, count = CustomFunctions(loss=crossed).compute_loss(outputs, targets, weights)
    assert count == 4 and torch.allclose(total, (crossed(outputs, targets) * weights).sum())
    try_out(CustomFunctions(loss=crossed), is_weighted=True)
    with pytest.raises(UsageError, match=r"mean of all pictures, so their weights cannot be applied.*a tensor \[16\]"):
        try_out(CustomFunctions(loss=mean_crossed), is_weighted=True)
