"""Several models as one `nn.Module` for export: their mean, which is decided on as `Predictor` does."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from jaxtyping import Integer
from torch import Tensor, nn

from ..errors import UsageError
from ..evaluate.decisions import Decisions
from ..formatting import format_count
from ..predict import exported
from ..predict.predictor import AnsweringModel, Predictor, as_predictor
from .module import ExportModule, GraphResize, ProbabilityHead, RegressionHead, probabilities_to_logits


class EnsembleModule(nn.Module):
    """Images as `ExportModule` takes them to its outputs, of the mean of several models.

    `probabilities` and `values` are means of the models' own, each by its own normalisation, views, calibration and
    scaling. `logits` are what gives these probabilities without a temperature; of regression they are the values.
    `distances` are by how much the middle model's distance exceeds its threshold (of an even number the upper one
    of two): above 0, at least half of the models find the image unlike their training.

    Args:
        resize, precision, kept: as `ExportModule`; names of layers begin with the place of their model.

    Raises:
        UsageError: some of the models, but not all, know which images are unlike their training.
    """

    def __init__(
        self, predictor: Predictor, resize: bool = False, precision: str = "float32", kept: Collection[str] = ()
    ):
        super().__init__()
        first = predictor.members[0]
        assert first.task in ("classification", "multilabel", "regression")  # a predictor averages no other
        self.spec, self.task, self.precision = predictor.spec, predictor.task, precision
        self.resizing = GraphResize(predictor.spec) if resize else None
        modules = [
            ExportModule(
                replace(member, case_pool=None),
                precision=precision,
                kept=[name.removeprefix(f"{prefix}.") for name in kept if name.startswith(f"{prefix}.")],
            )
            for prefix, member in zip(name_models(predictor), predictor.members, strict=True)
        ]
        self.members, self.names = nn.ModuleList(modules), [module.output_names for module in modules]
        decisions = decisions_in_file(predictor)
        self.cuts = [member.decisions.unlike for member in predictor.members] if decisions.unlike is not None else []
        joined = replace(first, decisions=decisions, scaling=None)
        self.decision = RegressionHead(joined) if self.task == "regression" else ProbabilityHead(joined)
        if any(member.scaling is not None and member.scaling.needs_float64 for member in predictor.members):
            self.decision.dtype = torch.float64
        self.output_names = exported.list_output_names(self.task, bool(self.cuts))

    def forward(self, images: Integer[Tensor, "B H W C"]) -> tuple[Tensor, ...]:
        images = images if self.resizing is None else self.resizing(images)
        members = zip(self.names, self.members, strict=True)
        answers = [dict(zip(names, member(images), strict=True)) for names, member in members]
        distances = None
        if self.cuts:
            excesses = [one[exported.DISTANCES] - cut for one, cut in zip(answers, self.cuts, strict=True)]
            distances = torch.stack(excesses).sort(0).values[len(excesses) // 2]  # [B]
        name = exported.VALUES if self.task == "regression" else exported.PROBABILITIES
        mean = torch.stack([one[name].double() for one in answers]).mean(0)  # [B, K]
        scores, logits, *decided = self.decision(probabilities_to_logits(mean, self.task), distances)
        outputs = (scores, logits.float(), *decided)
        return outputs if distances is None else (*outputs, distances)


ExportedModule = ExportModule | EnsembleModule


def make_module(
    model: AnsweringModel, resize: bool = False, precision: str = "float32", kept: Collection[str] = ()
) -> ExportedModule:
    """The module of a model, or of several that answer together.

    Raises:
        UsageError: as `EnsembleModule`.
    """
    predictor = as_predictor(model)
    if len(predictor.members) > 1:
        return EnsembleModule(predictor, resize, precision, kept)
    return ExportModule(predictor.members[0], resize, precision=precision, kept=kept)


def decisions_in_file(model: AnsweringModel) -> Decisions:
    """What a file decides by, from its own scores and distances.

    Raises:
        UsageError: as `EnsembleModule`.
    """
    predictor = as_predictor(model)
    cuts = [member.decisions.unlike for member in predictor.members]
    if len(cuts) == 1:
        return predictor.decisions
    if without := cuts.count(None):
        if without < len(cuts):
            raise UsageError(
                f"Of {format_count(len(cuts), 'model')} that answer together {without} cannot tell which pictures are "
                "unlike the training, so no file can take their vote. Train the folds on more pictures."
            )
        return replace(predictor.decisions, prior_ratio=())
    return replace(predictor.decisions, prior_ratio=(), unlike=0.0)


def join_models(model: AnsweringModel) -> nn.Module:
    """A model, or several as one module, in which their layers are called as by `name_models`."""
    models = [member.model for member in as_predictor(model).members]
    return models[0] if len(models) == 1 else nn.ModuleList(models)


def name_models(predictor: Predictor) -> list[str]:
    """What the names of the layers of each model begin with: nothing for one, else its place."""
    count = len(predictor.members)
    return [""] if count == 1 else [str(place) for place in range(count)]
