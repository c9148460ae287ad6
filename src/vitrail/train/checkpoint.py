"""Training checkpoints: weights, optimiser state, EMA weights and step, in folders that are complete or absent."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .. import config
from ..errors import DamagedFileError, ResourceError
from ..files import atomic, checksums, safetensors_file, strict_json
from ..files.disk import resource_errors
from ..files.safetensors_file import read_safetensors_header
from ..formatting import format_count
from ..runtime import cpu_name
from ..version import __version__
from .distributed.collectives import SINGLE_PROCESS, RankGroup
from .guards import Guards
from .loop import TrainState
from .optim import ModelEma, Muon
from .plan import Plan, Recipe
from .run_folder import RunFolder
from .signals import SignalRequest, resume_instructions

if TYPE_CHECKING:
    from .distributed.fsdp import ShardedSave


KEPT_CHECKPOINTS = 2
STATE_FILE, PLAN_FILE = "state.json", "plan.toml"
_STEP = "step-"
_EMPTY_FILE_BYTES = 32
"""Largest size of the unreadable file that older versions wrote without any tensor."""


def save_checkpoint(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    ema: ModelEma | None,
    plan: str | None = None,
    extra_facts: Mapping[str, Any] | None = None,
    sharded_save: ShardedSave | None = None,
) -> Path:
    """Write `folder/step-00000123/` for a run that has finished 123 steps, and delete all but the newest two.

    The folder appears complete or not at all, also in the place of a damaged one; `LATEST` then names it. Old ones that
    cannot be deleted stay; `list_old_checkpoints` lists them.

    Args:
        plan: the plan of the steps so far, as TOML.
        extra_facts: further facts for a resume, in JSON types, such as the guards' state.
        sharded_save: writes the tensors of a sharded train state, in shards.

    Raises:
        ResourceError: no space or no permission; the older checkpoints are untouched.
    """
    path = folder / f"{_STEP}{step:08d}"
    if path.exists() and not _is_complete(path):
        with resource_errors(path):
            atomic.remove_folder(path)  # the run resumed from an older one, which stays until this one is written
    if not path.exists():
        with atomic.write_folder(path) as new:
            if sharded_save is not None:
                sharded_save.write(new)
            else:
                for kind, tensors in _tensors_by_kind(model, optimizers, ema).items():
                    if tensors:  # before the first applied step the optimisers have no state
                        safetensors_file.save_tensors(new / f"{kind}.safetensors", tensors, {})
            if plan is not None:
                atomic.write_text(new / PLAN_FILE, plan)
            atomic.write_json(new / STATE_FILE, {"step": step, **describe_machine(), **(extra_facts or {})})
    atomic.write_text(folder / "LATEST", path.name + "\n")
    for old in list_old_checkpoints(folder, step):
        with suppress(OSError):
            atomic.remove_folder(old)
    return path


def describe_machine() -> dict[str, str | int]:
    """The facts beside the plan that bit-for-bit reproducibility depends on."""
    return {
        "vitrail": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processes": dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1,
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
    }


def list_old_checkpoints(folder: Path, step: int) -> list[Path]:
    """All but the newest two checkpoints up to a step that has just been saved, the oldest first.

    Later ones too: they are damaged, because the run resumed before them, and must not displace a complete one.
    """
    checkpoints = sorted(folder.glob(f"{_STEP}*"))
    kept = [path for path in checkpoints if path.name <= f"{_STEP}{step:08d}"][-KEPT_CHECKPOINTS:]
    return [path for path in checkpoints if path not in kept]


def find_newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint, None if there are none, and a sentence for every newer damaged one.

    The step in its name decides, and must be that of the verified state inside. If another process deletes checkpoints
    meanwhile, the search starts again.

    Raises:
        DamagedFileError: there are checkpoints and all of them are damaged.
    """
    while True:
        checkpoints = sorted(folder.glob(f"{_STEP}*"), reverse=True)
        complaints = []
        for path in checkpoints:
            try:
                _verify_checkpoint(path)
            except (DamagedFileError, FileNotFoundError) as error:
                complaints.append(str(error))
            else:
                return path, complaints
        if not checkpoints:
            return None, []
        if all(path.exists() for path in checkpoints):
            raise DamagedFileError("No checkpoint of this run is whole: " + " ".join(complaints))


def read_checkpoint_facts(path: Path) -> dict[str, Any]:
    """Read the facts beside the tensors: step, machine, extra facts."""
    return dict(strict_json.read_json(path / STATE_FILE))


def read_checkpoint_plan(path: Path) -> Plan | None:
    """The plan of a checkpoint; None in those of an older version.

    Raises:
        UsageError: it was saved by a version with other settings.
    """
    return config.read_toml(path / PLAN_FILE, Plan) if (path / PLAN_FILE).is_file() else None


def check_disk_space(folder: Path, train_state: TrainState) -> None:
    """Check before the training that the disk has space for the checkpoints.

    Raises:
        ResourceError: it has not; the message says what is needed and what is free.
    """
    each = checkpoint_bytes(train_state)
    needed = (KEPT_CHECKPOINTS + 1) * each - sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(
            f"{KEPT_CHECKPOINTS + 1} checkpoints of {each / 2**20:,.0f} MiB must fit on the disk ({KEPT_CHECKPOINTS} "
            f"are kept while the next is written), and only {free / 2**20:,.0f} MiB are free in {folder}. Free some "
            "room, or choose another disk with --out."
        )


def load_checkpoint(
    path: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], ema: ModelEma | None
) -> int:
    """Load a checkpoint into model, optimisers and EMA, strictly; return the number of finished steps.

    Raises:
        DamagedFileError: a tensor is missing, left over, or of another shape.
    """
    applied = _has_moments(path)
    for optimizer in optimizers:
        if applied:
            _init_optimizer_state(optimizer)
        else:
            optimizer.state.clear()
    if any(path.glob("shard-*")):  # FSDP2 wrote it
        from .distributed import fsdp  # a second to import, for sharded runs only

        fsdp.read_shards(path, collect_tensors(model, optimizers, ema))
    else:
        for kind, tensors in _tensors_by_kind(model, optimizers, ema).items():
            if tensors:
                _load_file(path / f"{kind}.safetensors", tensors)
    return int(read_checkpoint_facts(path)["step"])


def load_train_state(path: Path, train_state: TrainState, guards: Guards) -> dict[str, Any]:
    """Load a checkpoint into a train state and its guards; return the facts beside the tensors.

    Raises:
        DamagedFileError: a tensor is missing, left over, or of another shape.
    """
    load_checkpoint(path, train_state.model, train_state.optimizers, train_state.ema)
    facts = read_checkpoint_facts(path)
    guards.load_state_dict(facts.get("guards", {}))
    train_state.load_state_dict(facts)
    return facts


def collect_tensors(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], ema: ModelEma | None
) -> dict[str, Tensor]:
    """All tensors of a checkpoint by name, such as model/head.linear.weight, optimizer/head.linear.weight/exp_avg."""
    kinds = _tensors_by_kind(model, optimizers, ema)
    return {f"{kind}/{name}": tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}


def checkpoint_bytes(train_state: TrainState) -> int:
    """Approximate bytes of a checkpoint; includes optimiser moments that do not exist yet."""
    weights = sum(value.nbytes for value in train_state.model.state_dict().values())
    if train_state.ema is not None:
        weights += sum(value.nbytes for value in train_state.ema.weights.values())
    for optimizer in train_state.optimizers:
        moments = 1 if isinstance(optimizer, Muon) else 2
        weights += moments * sum(value.nbytes for group in optimizer.param_groups for value in group["params"])
    return weights


def _is_complete(path: Path) -> bool:
    try:
        _verify_checkpoint(path)
    except (DamagedFileError, FileNotFoundError):
        return False
    return True


def _verify_checkpoint(path: Path) -> None:
    checksums.verify_manifest(path)
    step = read_checkpoint_facts(path).get("step")
    if path.name != f"{_STEP}{step:08d}":
        raise DamagedFileError(f"{path} holds step {step}: somebody has renamed it.")


def _has_moments(path: Path) -> bool:
    """Whether the checkpoint has optimiser state, which begins with the first applied step."""
    if shards := list(path.glob("shard-*")):
        return any(name.startswith("optimizer/") for shard in shards for name in read_safetensors_header(shard).entries)
    file = path / "optimizer.safetensors"
    return file.is_file() and file.stat().st_size > _EMPTY_FILE_BYTES


@torch.no_grad()
def _load_file(path: Path, tensors: dict[str, Tensor]) -> None:
    stored = safetensors_file.load_tensors(path)
    mismatched = sorted(stored.keys() ^ tensors.keys())
    mismatched += [name for name in stored.keys() & tensors.keys() if stored[name].shape != tensors[name].shape]
    if mismatched:
        raise DamagedFileError(
            f"{path} does not fit this run: {format_count(len(mismatched), 'tensor is', 'tensors are')} missing, left "
            f"over or of another shape, the first is {mismatched[0]}. The plan was changed, or the file belongs to "
            "another run."
        )
    for name, tensor in tensors.items():
        if type(tensor) is Tensor:
            tensor.copy_(stored[name])
        else:  # a shard
            from .distributed.fsdp import copy_into_shard  # a second to import, for sharded runs only

            copy_into_shard(stored[name], tensor)


def make_sharded_save(train_state: TrainState, group: RankGroup) -> ShardedSave:
    """The writer of a train state that is sharded over ranks; one object on each rank."""
    from .distributed.fsdp import ShardedSave  # a second to import, for sharded runs only

    return ShardedSave(group, collect_tensors(train_state.model, train_state.optimizers, train_state.ema))


def _tensors_by_kind(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], ema: ModelEma | None
) -> dict[str, dict[str, Tensor]]:
    """The tensors of each file."""
    tensors = {"model": dict(model.state_dict()), "optimizer": dict(_optimizer_tensors(model, optimizers))}
    return tensors if ema is None else tensors | {"average": ema.weights}


def _optimizer_tensors(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[str, Tensor]]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, tensor in state.items():
                yield f"{names[parameter]}/{key}", tensor


def _init_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the state of a fresh optimiser by a step with zero gradients and learning rate 0."""
    if isinstance(optimizer, Muon):
        optimizer.init_state()
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


# -- Periodic saves, and the note for a failed one

SECONDS_BETWEEN_SAVES = 60.0


def is_save_due(recipe: Recipe, step: int, saved_at: float, signal_request: SignalRequest) -> bool:
    """Whether to save after `step` steps: the interval has passed, a signal came, or it was the last step.

    Args:
        saved_at: time of the last save, by `time.monotonic`.
    """
    every = recipe.save_every
    is_time = step % every == 0 if every else time.monotonic() - saved_at > SECONDS_BETWEEN_SAVES
    return is_time or signal_request.save or bool(signal_request) or step == recipe.steps


@contextmanager
def save_when_closed(save: Callable[[], object]) -> Iterator[None]:
    """Within this block of a generator, `save` is called if the generator is closed: its events are read no further."""
    try:
        yield
    except GeneratorExit:
        save()
        raise


class CheckpointSaver:
    """Saves one run: about once a minute, or every so many steps if the recipe says so."""

    def __init__(
        self, run: RunFolder, plan: Plan, train_state: TrainState, guards: Guards, group: RankGroup = SINGLE_PROCESS
    ):
        self._run, self._train_state, self._guards = run, train_state, guards
        self._group = group
        self.can_save_alone = not train_state.sharded
        """Whether this process holds all weights and can save without the other ranks."""
        self.plan = plan
        """The plan that is followed, which every checkpoint holds."""
        self.step = 0
        """The last step that this process has taken."""
        self._saved_at = time.monotonic()
        self._saved_step = 0
        self._warned = False

    def is_due(self, step: int, signal_request: SignalRequest) -> bool:
        """Whether to save after this step; see `is_save_due`."""
        return is_save_due(self.plan.recipe, step, self._saved_at, signal_request)

    def save_last_step(self) -> None:
        """Save the last step, unless it is saved or this process cannot do it alone."""
        if self.step > self._saved_step and self.can_save_alone:
            self.save(self.step)

    def save(self, step: int) -> list[str]:
        """Save the run after `step` steps; returns warnings.

        Raises:
            ResourceError: it cannot be saved; the message names the older step that is safe.
        """
        train_state, folder = self._train_state, self._run.checkpoints
        sharded_save = None if not train_state.sharded else make_sharded_save(train_state, self._group)
        self._run.flush_metrics()  # a power cut must not lose metrics of steps that the checkpoint keeps
        try:
            with self._group.pause_watchdog() if self.can_save_alone else nullcontext():
                save_checkpoint(
                    folder, step, train_state.model, train_state.optimizers, train_state.ema,
                    config.to_toml(self.plan, {}),
                    {"guards": self._guards.state_dict(), **train_state.state_dict()}, sharded_save,
                )  # fmt: skip
        except ResourceError as error:
            size = checkpoint_bytes(train_state) / 2**20
            newest, _ = find_newest_checkpoint(folder)
            kept = f"step {read_checkpoint_facts(newest)['step']:,} is still safe" if newest else ""
            raise ResourceError(
                f"{error} The checkpoint of step {step:,} needs {size:,.1f} MiB; "
                f"{kept or 'nothing was saved before'}. Make room. {resume_instructions(self._run.path)}"
            ) from error
        finally:
            if sharded_save is not None:
                sharded_save.close()
        self._saved_at, self._saved_step = time.monotonic(), step
        undeleted = list_old_checkpoints(folder, step)
        if not undeleted or self._warned:
            return []
        self._warned = True
        return [
            f"The old checkpoint {undeleted[0]} cannot be deleted. The training goes on; delete it when it is over."
        ]
