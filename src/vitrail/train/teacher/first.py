"""A CNN that is trained first, on the same pictures with the same augmentation, and then teaches."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ...data.loader import Batch, ImageStore
from ...data.preprocess import normalize
from ...evaluate.collect import collect
from ...evaluate.glance import glance
from ...files import safetensors_file
from ...randomness import derive
from .. import prelude as preludes
from ..dataset import Dataset, class_of
from ..events import Event, Note
from ..keeping.started import TEACHER, plan_facts
from ..plan import Plan
from ..planning.imbalance import balance
from ..prelude import Prelude, filled
from ..recipe import LOOKED_AT, Recipe
from ..run import RunFolder
from ..stepping.objective import Loss, loss_for
from ..stepping.views import augment, mixed
from .cnn import CNN, create

NAME, TITLE = "teacher", "training of the teacher"
RATE = 3e-3
"""AdamW's, at its peak."""


def first(run: RunFolder, plan: Plan, dataset: Dataset, pictures: ImageStore) -> Iterator[Event]:
    """Train the CNN of a plan, unless the run has one; it then lies in the run folder.

    Raises:
        InterruptedRun, DataError, DivergedError, ResourceError: see `prelude.pursue`.
    """
    path = run.path / TEACHER
    if path.is_file():
        return
    network = fresh(plan)
    yield from preludes.pursue(run, prelude_of(plan, network, dataset, pictures))
    safetensors_file.save_tensors(
        path, network.state_dict(), {"steps": str(plan.teacher.steps), **plan_facts(plan)}, checksum=True
    )
    preludes.forget(run, NAME)
    yield Note(_judged(plan, network, dataset))


def kept(run: RunFolder, plan: Plan) -> CNN:
    """The trained CNN of a run.

    Raises:
        DamagedFileError: its file is damaged, or of another shape than the plan says.
    """
    network = fresh(plan)
    filled(run.path / TEACHER, network)
    return network


def fresh(plan: Plan) -> CNN:
    """The CNN of a plan with its first values, on the device."""
    image, seed = plan.image, derive(plan.seed, "cnn")
    network = create(image.channels, image.size, plan.model.outputs, plan.teacher.width, seed)
    network.to(plan.compute.device)
    return network


def prelude_of(plan: Plan, network: CNN, dataset: Dataset, pictures: ImageStore, steps: int = 0) -> Prelude:
    """The training of the CNN; with `steps` of that length."""
    seed, task, recipe = derive(plan.seed, NAME), dataset.source.task, plan.recipe
    targets = dataset.learnt("train")
    weights = balance(task, recipe, targets, plan.model.outputs)
    measure = loss_for(task, recipe, None if weights is None else weights.to(plan.compute.device))

    def loss_of(batch: Batch, step: int, epoch: int) -> Loss:
        shown = augment(batch, recipe, seed, epoch, plan.compute.device)
        shown, expected = mixed(shown, batch, recipe, seed, epoch, plan.model.outputs)
        outputs: Tensor = network(normalize(shown, plan.image))
        return measure(outputs, expected)

    return Prelude(
        name=NAME,
        title=TITLE,
        plan=plan,
        module=network,
        recipe=Recipe(
            steps=steps or max(plan.teacher.steps, 1),
            batch=recipe.batch,
            repeats=recipe.repeats,
            optimizer="adamw",
            rate=RATE,
            weight_decay=recipe.weight_decay,
            warmup=0.1,
            skip_spikes=recipe.skip_spikes,
            save_every=recipe.save_every,
        ),
        seed=seed,
        loss_of=loss_of,
        pictures=pictures,
        targets=targets,
        blocks=dataset.blocks("train"),
        advice="Look at the pictures (vitrail check), or take another teacher: the rates of this one are fixed.",
        names=dataset.source.ids,
    )


def _judged(plan: Plan, network: CNN, dataset: Dataset) -> str:
    """How good it is on validation pictures, for a person who wonders whether it is worth following."""
    rows = dataset.sample("val", LOOKED_AT, plan.seed)
    if not len(rows):
        return "The teacher is trained."
    pictures = dataset.pictures("val", plan.image, plan.compute.workers)
    logits = collect(network, pictures, rows, plan.image, 250, plan.compute.device)
    source, scaling = dataset.source, dataset.scaling
    targets = class_of(source, rows) if source.task == "classes" else source.targets[rows]
    found = glance(source.task, logits, targets if scaling is None else scaling.standardised(targets))
    if found is None or found.figure is None:
        return "The teacher is trained."
    return f"The teacher is trained: {found.name} {found.figure:.3f} on {len(rows):,} validation pictures."
