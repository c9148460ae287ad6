"""Levers of a training from scratch that Vitrail does not have, each for the time of a trial.

    python benchmarks/making/levers.py value-residual=0.5 train fashion-mnist --weights none --minutes 1
    python benchmarks/making/levers.py row-moments=0.95,cautious-decay=1 train --resume RUN

A lever puts its own function in the place of one of the package, so that the package, its plans and its files stay as
they are while the lever is on trial (`ablation.py --screen`). What proves its worth is built in as a setting; what does
not is deleted here, in one place. A run is resumed with the levers that it was begun with, and then ends with the same
bits: what a lever keeps lies in the optimisers' part of the checkpoints, or follows from the step alone. Every process
of a distributed training computes the same from the same gradients; sharded ones (fsdp) are refused. Levers of the
model change what its weights mean: whoever reads such a run with a command of Vitrail runs that with its levers too.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.cli import main as command_line
from vitrail.errors import UsageError
from vitrail.model import vit
from vitrail.model.attention import Attention
from vitrail.model.config import ViTConfig
from vitrail.model.layers import ACTIVATIONS
from vitrail.model.positions import fixed_table
from vitrail.model.vit import Encoder
from vitrail.spec import Grid
from vitrail.train import loop, optim
from vitrail.train.optim import ModelEma, Muon
from vitrail.train.plan import ProgressiveStage, Recipe

Optimizers = list[torch.optim.Optimizer]


def main(words: Sequence[str]) -> int:
    """Run a command of Vitrail with levers; its exit code."""
    try:
        with pull_levers(words[0] if words else ""):
            return command_line.main(words[1:])
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def pull_levers(text: str) -> ExitStack:
    """A context with these levers.

    Args:
        text: NAME=NUMBER, several with commas.

    Raises:
        UsageError: there is no such lever, or its number is outside its limits.
    """
    with ExitStack() as pulled:
        for lever in text.split(","):
            name, _, value = lever.partition("=")
            if name not in LEVERS:
                raise UsageError(f"There is no lever {name!r}. Known: {', '.join(LEVERS)}.")
            pull, most = LEVERS[name]
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not 0 < number <= most:
                raise UsageError(f"{name} needs a number above 0 and at most {most:g}, as {name}=1e-3. Got {value!r}.")
            pulled.enter_context(pull(number))
        return pulled.pop_all()


# -- Optimisers


def _change_optimizers(change: Callable[[Optimizers, nn.Module, Recipe], object]) -> AbstractContextManager[Any]:
    """A context in which every list of optimisers that is built is changed so."""
    build = optim.build_optimizers

    def build_changed(model: nn.Module, recipe: Recipe, *rest: Any, **more: Any) -> Optimizers:
        optimizers = build(model, recipe, *rest, **more)
        if any(muon.sharded for muon in _muons(optimizers)):
            raise UsageError("Levers are not for sharded weights. Give --compute.strategy ddp.")
        change(optimizers, model, recipe)
        return optimizers

    return patch.object(optim, "build_optimizers", build_changed)


def _muons(optimizers: Iterable[torch.optim.Optimizer]) -> list[Muon]:
    return [optimizer for optimizer in optimizers if isinstance(optimizer, Muon)]


def pull_muon_decay(decay: float) -> AbstractContextManager[Any]:
    """A weight decay of Muon's own; recipe.weight_decay is AdamW's alone."""

    def change(optimizers: Optimizers, model: nn.Module, recipe: Recipe) -> None:
        for muon in _muons(optimizers):
            for group in muon.param_groups:
                group["weight_decay"] = decay

    return _change_optimizers(change)


MOMENTUM_RISE, MOMENTUM_FALL = 0.15, 0.03
"""Parts of the steps in which the momentum rises and falls: 300 and 50 of about 2,000 in modded-nanogpt."""


def pull_momentum_ends(ends: float) -> AbstractContextManager[Any]:
    """Muon's momentum rises from `ends` to recipe.muon_momentum in the first steps and falls back in the last.

    Source: the records of KellerJordan/modded-nanogpt, 0.85 to 0.95 to 0.85.
    """
    set_rates = optim.set_learning_rates

    def set_rates_and_momentum(optimizers: Optimizers, recipe: Recipe, step: int) -> None:
        set_rates(optimizers, recipe, step)
        for muon in _muons(optimizers):
            for group in muon.param_groups:
                group["momentum"] = momentum_at(recipe.progress(step), ends, recipe.muon_momentum)

    return patch.object(optim, "set_learning_rates", set_rates_and_momentum)


def momentum_at(progress: float, ends: float, peak: float) -> float:
    """The momentum after a part 0..1 of the steps."""
    return ends + (peak - ends) * min(1.0, progress / MOMENTUM_RISE, (1 - progress) / MOMENTUM_FALL)


@contextmanager
def pull_row_moments(beta: float) -> Iterator[None]:
    """NorMuon: every row of an orthogonalised update is divided by the root of the running mean of its squares, and the
    matrix is scaled back to its norm, so that recipe.muon_lr keeps its meaning (Li et al. 2025, arXiv 2510.05491).
    """
    initialise = Muon.init_state

    def init_state(muon: Muon) -> None:
        initialise(muon)
        for group in muon.param_groups:
            for matrix in group["params"]:
                _row_moments(muon, matrix)

    def even(muon: Muon, part: Tensor, direction: Tensor, lr: float) -> Tensor:
        matrix = part if part._base is None else part._base
        first = (part.storage_offset() - matrix.storage_offset()) // matrix.shape[1]
        return even_rows(direction, _row_moments(muon, matrix)[first : first + len(part)], beta)

    with patch.object(Muon, "init_state", init_state), _change_directions(even):
        yield


def _row_moments(muon: Muon, matrix: Tensor) -> Tensor:
    """The running mean of squares of each row of a matrix's updates, which the optimiser keeps."""
    state: dict[str, Tensor] = muon.state[matrix]
    return state.setdefault("row_moments", matrix.new_zeros(len(matrix)))


def even_rows(direction: Tensor, moments: Tensor, beta: float) -> Tensor:
    """A direction [r, c] with even rows and its norm kept; `moments` [r] are brought up to date."""
    moments.lerp_(direction.square().mean(dim=1), 1 - beta)
    evened = direction / (moments.sqrt() + 1e-10)[:, None]
    return evened * (direction.norm() / evened.norm().clamp(min=1e-10))


@contextmanager
def pull_cautious_decay(on: float) -> Iterator[None]:
    """Muon decays a weight only where the update moves it towards zero too (Chen et al. 2025, arXiv 2510.12402)."""

    def change(optimizers: Optimizers, model: nn.Module, recipe: Recipe) -> None:
        for muon in _muons(optimizers):
            for group in muon.param_groups:
                muon.cautious_decay, group["weight_decay"] = group["weight_decay"], 0.0  # one number for all groups

    def decay(muon: Muon, part: Tensor, direction: Tensor, lr: float) -> Tensor:
        part.mul_(1 - lr * muon.cautious_decay * (direction * part >= 0))
        return direction

    with _change_optimizers(change), _change_directions(decay):
        yield


@contextmanager
def _change_directions(change: Callable[[Muon, Tensor, Tensor, float], Tensor]) -> Iterator[None]:
    """A context in which Muon passes every direction [r, c], with the part of a matrix that it moves, through
    `change`; several are nested, the last one pulled is applied first.
    """
    apply_updates = Muon._apply_updates

    def apply_changed(muon: Muon, stack: list[tuple[Tensor, Tensor, float, bool]]) -> None:
        plain = muon.orthogonalise

        def orthogonalise(matrices: Tensor) -> Tensor:
            found = plain(matrices).to(stack[0][0].dtype)
            for (part, _, lr, tall), direction in zip(stack, found, strict=True):
                changed = change(muon, part, direction.T if tall else direction, lr)
                direction.copy_(changed.T if tall else changed)
            return found

        muon.orthogonalise = orthogonalise
        try:
            apply_updates(muon, stack)
        finally:
            muon.orthogonalise = plain

    with patch.object(Muon, "_apply_updates", apply_changed):
        yield


LOOKAHEAD_DECAY = 0.99
"""Decay per step of the mean of weight changes that EMA-Nesterov looks along."""


class Lookahead(torch.optim.Optimizer):
    """EMA-Nesterov: the gradient is taken ahead of the weights, along the running mean of their changes
    (Yau et al. 2026, arXiv 2605.25395).

    With w the weights, m the mean and b the strength: the other optimisers move w + b m to the new w;
    m <- decay m + (1 - decay) (new w - w); the model then gets w + b m. It stands behind the others in their list.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]):
        super().__init__(parameters, {"lr": 0.0, "scale": 1.0, "strength": 0.0})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"place": parameter.detach().clone(), "change": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take what the others have done as the new weights, and look ahead."""
        for group in self.param_groups:
            if not all(self.state[parameter] for parameter in group["params"]):
                raise UsageError("No step was applied before this run was stopped. Delete its folder and begin again.")
            places, changes = ([self.state[each][name] for each in group["params"]] for name in ("place", "change"))
            torch._foreach_lerp_(changes, torch._foreach_sub(group["params"], places), 1 - LOOKAHEAD_DECAY)
            torch._foreach_copy_(places, group["params"])
            torch._foreach_add_(group["params"], changes, alpha=group["strength"])


@contextmanager
def pull_lookahead(strength: float) -> Iterator[None]:
    """EMA-Nesterov, see `Lookahead`: none in the warm-up, then `strength` times the factor of the learning rate, which
    falls to 0, so that the last weights are not ahead. The paper switches it off before the final decay instead.
    """
    set_rates = optim.set_learning_rates

    def set_rates_and_strength(optimizers: Optimizers, recipe: Recipe, step: int) -> None:
        set_rates(optimizers, recipe, step)
        for optimizer in optimizers:
            if isinstance(optimizer, Lookahead):
                is_on = recipe.warmup <= recipe.progress(step + 1) < 1
                optimizer.param_groups[0]["strength"] = strength * recipe.lr_factor(step + 1) * is_on

    def change(optimizers: Optimizers, model: nn.Module, recipe: Recipe) -> None:
        optimizers.append(Lookahead(parameter for parameter in model.parameters() if parameter.requires_grad))

    with _change_optimizers(change), patch.object(optim, "set_learning_rates", set_rates_and_strength):
        yield


@contextmanager
def pull_mean_of_last(fraction: float) -> Iterator[None]:
    """The answer is the plain mean of the weights after each of the last steps (Kaddour 2022; Sanyal et al. 2023).

    It takes the place of the running mean, so recipe.ema_decay must be above 0, and its number has no meaning.
    """
    apply_step = loop.apply_step

    def apply_and_average(train_state: loop.TrainState, recipe: Recipe, *rest: Any) -> float:
        if train_state.ema is None:
            raise UsageError("mean-of-last takes the place of the running mean. Give --recipe.ema_decay 0.5 too.")
        train_state.ema.first = recipe.step_at(1 - fraction)
        return apply_step(train_state, recipe, *rest)

    @torch.no_grad()
    def update(ema: ModelEma, model: nn.Module, step: int) -> None:
        current = [parameter.detach() for parameter in model.parameters()]
        torch._foreach_lerp_(list(ema.weights.values()), current, 1 / max(1, step - ema.first + 1))

    with patch.object(loop, "apply_step", apply_and_average), patch.object(ModelEma, "update", update):
        yield


# -- Order and sizes of pictures


def pull_other_order(number: float) -> AbstractContextManager[Any]:
    """The same pictures in another order, with the seed's own split and initial values: a change without effect, by
    which two trainings differ as much as luck has it.
    """
    iterate = loop.iter_batches

    def iterate_otherwise(images: Any, targets: Any, batch_size: int, seed: int, *rest: Any) -> Iterator[Any]:
        return iterate(images, targets, batch_size, seed + round(1e6 * number), *rest)

    return patch.object(loop, "iter_batches", iterate_otherwise)


@contextmanager
def pull_three_sizes(until: float) -> Iterator[None]:
    """Between recipe.progressive_until and this part of the steps pictures have the mean of the small and the full side
    (three stages, as in Tan and Le 2021).
    """
    grid_at, stages = Recipe.grid_at, Recipe.progressive_stages

    def grid_of_three(recipe: Recipe, step: int, grid: Grid) -> Grid:
        if not recipe.step_at(recipe.progressive_until) <= step < recipe.step_at(until):
            return grid_at(recipe, step, grid)
        return Grid(*(max(1, round((recipe.progressive_size + 1) / 2 * side)) for side in grid))

    def stages_of_three(recipe: Recipe) -> list[ProgressiveStage]:
        if not 0 < recipe.progressive_until < until:
            raise UsageError(
                f"three-sizes={until:g} needs a recipe.progressive_until above 0 and below it. "
                f"Got {recipe.progressive_until}."
            )
        found = []
        for begin, fraction in stages(recipe):
            middle = min(max(begin, until), begin + fraction)
            parts = ((begin, middle - begin), (middle, begin + fraction - middle))
            found += [ProgressiveStage(*part) for part in parts if part[1] > 1e-9]
        return found

    with (
        patch.object(Recipe, "grid_at", grid_of_three),
        patch.object(Recipe, "progressive_stages", stages_of_three),
    ):
        yield


# -- The model


class Held:
    """What the first block of a model has for the later ones, within one pass; a copy of the model has its own."""

    def __init__(self) -> None:
        self.tensor: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        return memo.setdefault(id(self), Held())


def _change_encoders(change: Callable[[Encoder, Held], None]) -> AbstractContextManager[Any]:
    """A context in which every encoder that is made is changed so."""
    make = Encoder.__init__

    def make_changed(encoder: Encoder, config: ViTConfig) -> None:
        make(encoder, config)
        if config.grad_checkpointing:
            raise UsageError("Levers of the model are not for model.grad_checkpointing. Leave it out.")
        change(encoder, Held())

    return patch.object(Encoder, "__init__", make_changed)


@contextmanager
def pull_value_residual(weight: float) -> Iterator[None]:
    """The values of every block but the first are mixed with those of the first: (1 - weight) V + weight V_1
    (Zhou et al. 2024, arXiv 2410.17897, with 0.5 for all: Identity-ResFormer).
    """
    project = Attention._project_heads

    def change(encoder: Encoder, held: Held) -> None:
        for i, block in enumerate(encoder.blocks):
            block.attention.held, block.attention.gives_values = held, i == 0

    def project_mixed(attention: Attention, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = project(attention, *inputs)
        if not hasattr(attention, "held"):  # of a model that was made before the lever was pulled
            return q, k, v
        if attention.gives_values:
            attention.held.tensor = v
            return q, k, v
        return q, k, v.lerp(attention.held.tensor, weight)

    with _change_encoders(change), patch.object(Attention, "_project_heads", project_mixed):
        yield


@contextmanager
def pull_first_skip(weight: float) -> Iterator[None]:
    """The tokens after the first block, times `weight`, are added to the input of the last block (a skip as in U-ViT,
    Bao et al. 2022, without its matrix).
    """
    run_block = Encoder.run_block

    def change(encoder: Encoder, held: Held) -> None:
        encoder.held = held

    def run_with_skip(encoder: Encoder, block: nn.Module, x: Tensor, *rest: Any) -> Tensor:
        is_first, is_last = block is encoder.blocks[0], block is encoder.blocks[-1]
        if is_last and not is_first:
            x = x + weight * encoder.held.tensor
        y = run_block(encoder, block, x, *rest)
        if is_first:
            encoder.held.tensor = y
        return y

    with _change_encoders(change), patch.object(Encoder, "run_block", run_with_skip):
        yield


class ReLUSquared(nn.Module):
    """max(x, 0) ** 2."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


def pull_relu_squared(on: float) -> AbstractContextManager[Any]:
    """model.activation ReLU is ReLU squared (So et al. 2021, arXiv 2109.08668)."""
    return patch.dict(ACTIVATIONS, {"ReLU": ReLUSquared})


@contextmanager
def pull_impulse(strength: float) -> Iterator[None]:
    """Every head begins by looking at one neighbour, drawn by chance from the 3 x 3 places around a patch and itself:
    an attention that is a filter with a single 1 (Zheng et al. 2025, arXiv 2505.19985), for few pictures.

    Learned positions begin as waves P, and the matrices of queries and keys are factors of P^+ H (P^+)^T, in which H
    has the 1s: then the scores of the positions alone are H as far as waves can say it, and are scaled so that those of
    the neighbour lie `strength` above the mean of the others.
    """
    initialise = vit.initialise

    def initialise_with_impulses(model: nn.Module, config: ViTConfig, generator: torch.Generator) -> None:
        initialise(model, config, generator)
        if config.positions != "learned" or config.rotary != "none":
            raise UsageError('impulse needs model.positions="learned" and model.rotary="none".')
        waves = fixed_table("sincos2d-moco", config.grid, config.width, config.table_prefix)
        model.positions.table.data.copy_(waves)
        places = F.layer_norm(waves[config.table_prefix :], waves.shape[-1:], eps=config.norm_eps)  # [N, D]
        inverse = torch.linalg.pinv(places.double(), rtol=1e-6)  # [D, N]
        for block in model.encoder.blocks:
            queries, keys, _ = block.attention.qkv.weight.data.view(3, config.heads, config.head_dim, config.width)
            for query, key in zip(queries, keys, strict=True):
                row, column = (torch.randint(3, (2,), generator=generator) - 1).tolist()
                wanted = impulse(config.grid, row, column).double()  # [N, N]
                scores = places.double() @ inverse @ wanted @ inverse.T @ places.T.double()
                above = scores[wanted == 1].mean() - scores[wanted == 0].mean()
                left, sizes, right = torch.linalg.svd(inverse @ wanted @ inverse.T)
                roots = (sizes * strength / above / block.attention.scale).sqrt()[: config.head_dim, None]
                query.copy_(roots * left.T[: config.head_dim])
                key.copy_(roots * right[: config.head_dim])

    with patch.object(vit, "initialise", initialise_with_impulses):
        yield


def impulse(grid: Grid, row: int, column: int) -> Tensor:
    """1 where the second patch lies at this offset from the first, or nearest to it at the rim, else 0: [N, N]."""
    places = torch.arange(grid.patches)
    rows = (places // grid.columns + row).clamp(0, grid.rows - 1)
    columns = (places % grid.columns + column).clamp(0, grid.columns - 1)
    return F.one_hot(rows * grid.columns + columns, grid.patches).float()


LEVERS: dict[str, tuple[Callable[[float], AbstractContextManager[Any]], float]] = {
    "muon-decay": (pull_muon_decay, 1.0),
    "momentum-ends": (pull_momentum_ends, 0.999),
    "row-moments": (pull_row_moments, 0.999),
    "cautious-decay": (pull_cautious_decay, 1.0),
    "lookahead": (pull_lookahead, 100.0),
    "mean-of-last": (pull_mean_of_last, 0.999),
    "other-order": (pull_other_order, 1000.0),
    "three-sizes": (pull_three_sizes, 0.999),
    "value-residual": (pull_value_residual, 0.999),
    "first-skip": (pull_first_skip, 10.0),
    "relu-squared": (pull_relu_squared, 1.0),
    "impulse": (pull_impulse, 100.0),
}
"""By name: what pulls the lever, and the largest number it takes; 1 for one that is only on."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
