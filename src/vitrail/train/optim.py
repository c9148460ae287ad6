"""Optimisers: parameter groups for Muon and AdamW, learning-rate schedules, and the EMA of the weights."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..model import lora
from ..model.vit import ViT
from ..randomness import derive
from ..runtime import supports_bfloat16
from .plan import FinetuneSettings, Recipe


def build_optimizers(
    model: nn.Module,
    recipe: Recipe,
    device: str,
    sharded: bool = False,
    compiled: bool = False,
    lr_scales: Mapping[str, float] | None = None,
) -> list[torch.optim.Optimizer]:
    """The optimisers of a recipe for all trainable parameters. Biases, norms, tokens and tables are not decayed.

    Args:
        sharded: whether FSDP2 shards the parameters.
        compiled: whether Muon uses torch.compile.
        lr_scales: factor of the learning rate by parameter name; None is 1 for all.
    """
    blocks, matrices, rest = _split_parameters(model)
    fused = device.startswith("cuda") or (device == "cpu" and not sharded)  # one kernel: 2 to 7 times as fast
    if recipe.optimizer == "adamw":
        return [_adamw(blocks | matrices, rest, recipe, fused, lr_scales or {})]
    joint = {name: matrix for name, matrix in blocks.items() if name.endswith("attention.qkv.weight")}
    single = {name: matrix for name, matrix in blocks.items() if name not in joint}
    muon = Muon(
        [group | {"parts": 3} for group in _make_param_groups(joint, lr_scales or {})]
        + _make_param_groups(single, lr_scales or {}),
        lr=recipe.muon_lr,
        momentum=recipe.muon_momentum,
        weight_decay=recipe.weight_decay,
        compute=torch.bfloat16 if supports_bfloat16(device) else torch.float32,
        sharded=sharded,
        compiled=compiled,
    )
    return [muon, _adamw(matrices, rest, recipe, fused, lr_scales or {})]


NamedParameters = dict[str, nn.Parameter]
UNDECAYED_TABLES = {
    "cls", "distillation", "registers", "mask_token", "probe", "table", "key_rows", "key_columns", "value_rows",
    "value_columns", "frequencies", "prefix_angles",
}  # fmt: skip
"""Parameters of two and more dimensions that are no matrices: tokens, queries and positions, a row each."""


def _split_parameters(model: nn.Module) -> tuple[NamedParameters, NamedParameters, NamedParameters]:
    """Trainable parameters by name: matrices of the blocks, other matrices, and the undecayed rest."""
    blocks: NamedParameters = {}
    matrices: NamedParameters = {}
    rest: NamedParameters = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim < 2 or name.rpartition(".")[2] in UNDECAYED_TABLES:
            rest[name] = parameter
        elif ".blocks." in name:
            blocks[name] = parameter
        else:
            matrices[name] = parameter
    return blocks, matrices, rest


def _make_param_groups(parameters: NamedParameters, lr_scales: Mapping[str, float]) -> list[dict[str, Any]]:
    """One parameter group for each learning-rate scale."""
    by_scale: dict[float, list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        by_scale.setdefault(lr_scales.get(name, 1.0), []).append(parameter)
    return [{"params": members, "scale": scale} for scale, members in by_scale.items()]


def _adamw(
    decayed: NamedParameters, rest: NamedParameters, recipe: Recipe, fused: bool, lr_scales: Mapping[str, float]
) -> torch.optim.AdamW:
    groups = [group | {"weight_decay": recipe.weight_decay} for group in _make_param_groups(decayed, lr_scales)]
    groups += [group | {"weight_decay": 0.0} for group in _make_param_groups(rest, lr_scales)]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.95), fused=fused or None)


def set_learning_rates(optimizers: Iterable[torch.optim.Optimizer], recipe: Recipe, step: int) -> None:
    """Set the learning rate of every group for a step."""
    for optimizer in optimizers:
        peak = recipe.muon_lr if isinstance(optimizer, Muon) else recipe.lr
        for group in optimizer.param_groups:
            group["lr"] = peak * recipe.lr_factor(step) * group["scale"]


class ModelEma:
    """Exponential moving average (EMA) of a model's weights: mean <- decay * mean + (1 - decay) * weights.

    The decay is at most (1 + step) / (10 + step), so that the random initial weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights: dict[str, Tensor] = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Add the weights after `step` (from 0) to the mean."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = [parameter.detach() for parameter in model.parameters()]
        torch._foreach_lerp_(list(self.weights.values()), current, 1 - decay)


@contextmanager
def use_ema_weights(model: nn.Module, ema: ModelEma | None) -> Iterator[None]:
    """Within this block the model has its EMA weights, if there are any."""
    if ema is None:
        yield
        return
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    _copy_weights(model, ema.weights)
    try:
        yield
    finally:
        _copy_weights(model, weights)


@torch.no_grad()
def _copy_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


# -- Muon (Jordan 2024) for the matrices of the blocks: momentum, then the nearest orthogonal matrix
#
# torch.optim.Muon works one matrix at a time and in bfloat16, which is ten times slower than float32 on a CPU without
# bfloat16 instructions (EXPERIMENTS.md has the measurements). This one uses the faster precision of the machine,
# batches all matrices of one shape, and treats queries, keys and values as three matrices.

# The quintic polynomial of Keller Jordan's Muon: steep at 0, so that five rounds bring all singular values near 1.
_A, _B, _C = 3.4445, -4.7750, 2.0315
MAX_NUMBERS_AT_ONCE = 2**23
"""Values that are orthogonalised in one batch: a larger one is no faster, and its copies would dominate the memory."""


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton and Schulz's iteration (Jordan et al. 2024), with decoupled weight decay.

    Args:
        matrices: groups of parameters [rows, columns]; `parts=3` splits the rows of each into three matrices, as for a
            joint qkv projection.
        lr: learning rate; each update has singular values near lr * max(1, rows / columns) ** 0.5.
        compute: dtype of the iteration.
        sharded: whether FSDP2 shards the matrices; every rank then orthogonalises the gathered ones.
        compiled: whether the iteration uses torch.compile.
    """

    def __init__(
        self,
        matrices: Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        compute: torch.dtype = torch.float32,
        sharded: bool = False,
        compiled: bool = False,
    ):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": 1})
        self.compute = compute
        self.sharded = sharded

        self.orthogonalise = torch.compile(orthogonalise) if compiled else orthogonalise

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None
        if self.sharded:
            from .distributed.fsdp import shard_like, to_full_tensor  # a second to import, for sharded runs only
        stacks: dict[tuple[int, ...], list[tuple[Tensor, Tensor, float, bool]]] = defaultdict(list)
        sharded_updates: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not matrices:
                continue
            updates = self._update_momenta(matrices, group["momentum"])
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            for matrix, update in zip(matrices, updates, strict=True):
                target: Tensor = matrix
                if self.sharded:
                    update = to_full_tensor(update)
                    target = torch.zeros_like(update)
                    sharded_updates.append((matrix, target))
                for part, part_update in zip(target.chunk(group["parts"]), update.chunk(group["parts"]), strict=True):
                    tall = part_update.shape[0] > part_update.shape[1]
                    part_update = part_update.T if tall else part_update
                    stacks[tuple(part_update.shape)].append((part, part_update, group["lr"], tall))
        for shape, stack in stacks.items():
            count = max(1, MAX_NUMBERS_AT_ONCE // math.prod(shape))
            for start in range(0, len(stack), count):
                self._apply_updates(stack[start : start + count])
        for matrix, target in sharded_updates:
            matrix.add_(shard_like(target, matrix))

    def init_state(self) -> None:
        """Zero momentum for every matrix, to load a checkpoint into."""
        for group in self.param_groups:
            for matrix in group["params"]:
                self.state[matrix] = {"momentum": torch.zeros_like(matrix)}

    def _update_momenta(self, matrices: list[Tensor], momentum: float) -> list[Tensor]:
        """Add the gradients to the momenta, all in a few kernels; returns Nesterov's look ahead of each."""
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        momenta = [self.state[matrix]["momentum"] for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - momentum)
        return list(torch._foreach_lerp(gradients, momenta, momentum))

    def _apply_updates(self, stack: list[tuple[Tensor, Tensor, float, bool]]) -> None:
        directions = self.orthogonalise(torch.stack([part_update for _, part_update, _, _ in stack]).to(self.compute))
        directions = directions.to(stack[0][0].dtype)
        steps: dict[float, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for (part, _, lr, tall), direction in zip(stack, directions, strict=True):
            parts, changes = steps[lr * max(1.0, part.shape[0] / part.shape[1]) ** 0.5]
            parts.append(part)
            changes.append(direction.T if tall else direction)
        for size, (parts, changes) in steps.items():
            torch._foreach_add_(parts, changes, alpha=-size)


def orthogonalise(matrices: Float[Tensor, "n r c"], rounds: int = 5) -> Float[Tensor, "n r c"]:
    """Newton-Schulz iteration: all singular values near 1 (0.7 to 1.2), singular vectors kept. For r <= c."""
    x = matrices / matrices.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    for _ in range(rounds):
        gram = x @ x.mT  # [n, r, r]
        polynomial = torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C)
        x = torch.baddbmm(x, polynomial, x, beta=_A)
    return x


# -- Fine-tuning parameter groups: freezing, LoRA adapters, layer-wise learning-rate decay


def set_trainable(model: ViT, settings: FinetuneSettings, seed: int) -> None:
    """Make only the parameters trainable that the settings name: LoRA adapters and head, or upper blocks and head."""
    if not settings.from_checkpoint or settings.method == "probe":
        return
    if settings.method == "lora":
        generator = torch.Generator().manual_seed(derive(seed, "lora"))
        lora.add_adapters(model, settings.lora_rank, generator, settings.lora_mlp)
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(
            not settings.freeze_blocks or layer_index(name, model.config.depth) > settings.freeze_blocks
        )


def layer_index(name: str, depth: int) -> int:
    """Layer of a parameter: 0 for the embeddings, 1 for the first block, depth + 1 for all above the last."""
    if match := re.match(r"encoder\.blocks\.(\d+)\.", name):
        return int(match[1]) + 1
    return 0 if name.startswith(("tokens.", "positions.", "rotary.", "encoder.pre_norm.")) else depth + 1


def layer_lr_scales(model: ViT, layer_decay: float) -> dict[str, float]:
    """Learning-rate factor of each parameter: layer_decay ** (depth + 1 - layer) (Clark et al. 2020)."""
    depth = model.config.depth
    return {name: layer_decay ** (depth + 1 - layer_index(name, depth)) for name, _ in model.named_parameters()}
