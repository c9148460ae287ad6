"""A whole predictor as one module: pictures uint8 in, answers out, so that an exported file decides as the run does."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from ..data.preprocess import normalize
from ..evaluate.collect import NUMBER_FORMATS, averaged
from ..model.attention import Attention
from ..model.config import AttentionChoice
from ..model.vit import ViT
from ..predict import exported
from ..predict.exported import ABSTENTION_REASONS
from ..predict.predictor import PredictorMember
from .resizing import Resizing

UNSURE, UNLIKE = ABSTENTION_REASONS.index("unsure"), ABSTENTION_REASONS.index("unlike")


class Answering(nn.Module):
    """Pictures uint8 [B, H, W, C] of the model's size to the outputs that `names` lists.

    `probabilities` float32 [B, K] (`values` of numbers, in the user's units), `logits` float32 [B, K] (averaged over
    all views, before any temperature), `decisions` int64, the answered class [B] or 0 and 1 of each label [B, K] (none
    for numbers), `abstained` int64 [B], a place in `exported.REASONS`, and `distances` float64 [B] from the training
    pictures, if a cut was fitted. What `Decisions` computes in float64 is computed in float64 here.

    Args:
        resize: take pictures of any size, and resize them as `Resizing` does.
        attention: the path of attention; "open" becomes plain products in a graph.
        number_format: in which matrices are stored and multiplied, as `torch.autocast` does it; what they decide is
            always computed in float32 and float64.
    """

    def __init__(
        self,
        member: PredictorMember,
        resize: bool = False,
        attention: AttentionChoice = "open",
        number_format: str = "float32",
    ):
        super().__init__()
        assert isinstance(member.model, ViT)
        self.spec = member.spec
        self.task = member.task
        self.views = member.views
        self.resizing = Resizing(member.spec) if resize else None
        self.number_format = number_format
        self.model = _frozen(member.model, attention, NUMBER_FORMATS[number_format])
        self.distances = _distances(member)
        self.decide: nn.Module = Values(member) if member.task == "number" else Chances(member)
        self.names = exported.list_output_names(member.task, self.distances is not None)

    def forward(self, images: UInt8[Tensor, "B H W C"]) -> tuple[Tensor, ...]:
        images = images if self.resizing is None else self.resizing(images)
        x = normalize(images.permute(0, 3, 1, 2), self.spec)  # [B, C, H, W] float32
        views = torch.cat(list(self.views.of_each(x)))  # [views * B, C, H, W]
        logits, features = self._in_its_format(views)
        if self.views.count > 1:
            logits = averaged(logits.unflatten(0, (self.views.count, -1)), self.task)
        distances = None if self.distances is None or features is None else self.distances(features)
        answers = self.decide(logits, distances)
        return (*answers, distances) if distances is not None else answers

    def _in_its_format(self, views: Tensor) -> tuple[Tensor, Tensor | None]:
        """Float32 outputs and features, whatever they were computed in."""
        if self.number_format == "float32":
            return self._looked_at(views)
        with torch.autocast("cpu", NUMBER_FORMATS[self.number_format]):
            logits, features = self._looked_at(views)
        return logits.float(), None if features is None else features.float()

    def _looked_at(self, views: Tensor) -> tuple[Tensor, Tensor | None]:
        """Outputs for all views, and what the head reads of the pictures as they are, if somebody wants it."""
        if self.distances is None:
            return self.model(views), None
        kept = self.model.features(views, keep=("pooled", "outputs"))
        itself = kept["pooled"].unflatten(0, (self.views.count, -1))[0]  # [B, P]
        return kept["outputs"], itself[:, -self.model.config.width :]


class Chances(nn.Module):
    """Logits to calibrated probabilities and what they decide, of classes or labels: `Decisions` as a module."""

    temperature: Tensor
    labels: Tensor

    def __init__(self, member: PredictorMember):
        super().__init__()
        decided, K = member.decided, len(member.classes)
        self.task = member.task
        self.positive = member.classes.index(decided.positive) if decided.positive and decided.thresholds else None
        self.cut = _float32(decided.thresholds[0]) if self.positive is not None else 0.0
        self.sure = _float32(decided.sure)
        self.unlike = decided.unlike
        self.register_buffer("temperature", torch.tensor(decided.temperature or (1.0,), dtype=torch.float64))
        each = decided.thresholds if member.task == "labels" and decided.thresholds else (0.5,) * K
        self.register_buffer("labels", torch.tensor(each, dtype=torch.float64))

    def forward(self, logits: Float[Tensor, "B K"], distances: Float[Tensor, " B"] | None) -> tuple[Tensor, ...]:
        calibrated = logits.double() / self.temperature
        if self.task == "labels":
            probabilities = calibrated.sigmoid().float()
            decisions = (probabilities.double() >= self.labels).to(torch.int64)  # [B, K]
            return probabilities, logits, decisions, _silent(logits, None, distances, self.unlike)
        probabilities = calibrated.softmax(-1).float()
        unsure = probabilities.amax(-1) < self.sure if self.sure else None
        return probabilities, logits, self._classes(probabilities), _silent(logits, unsure, distances, self.unlike)

    def _classes(self, probabilities: Float[Tensor, "B K"]) -> Int64[Tensor, " B"]:
        if self.positive is None:
            return probabilities.argmax(-1)
        reached = (probabilities[:, self.positive] >= self.cut).to(torch.int64)
        return reached * self.positive + (1 - reached) * (1 - self.positive)


class Values(nn.Module):
    """Outputs as they were learnt to numbers in the user's units."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, member: PredictorMember):
        super().__init__()
        K = len(member.classes)
        mean, deviation = (0.0,) * K, (1.0,) * K
        if member.scaling is not None:
            mean, deviation = member.scaling.mean, member.scaling.deviation
        self.unlike = member.decided.unlike
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float64))

    def forward(self, logits: Float[Tensor, "B K"], distances: Float[Tensor, " B"] | None) -> tuple[Tensor, ...]:
        values = (logits.double() * self.deviation + self.mean).float()
        return values, logits, _silent(logits, None, distances, self.unlike)


class Distances(nn.Module):
    """`Familiar.distances` as a module: squared Mahalanobis distances to the nearest of some means, float64."""

    whitening: Tensor
    centres: Tensor

    def __init__(self, means: Tensor, whitening: Tensor):
        super().__init__()
        self.register_buffer("whitening", whitening.double())
        self.register_buffer("centres", means.double() @ whitening.double())  # [K, D]

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        wide = features.double()
        white = wide / wide.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12) @ self.whitening  # [B, D]
        products = white @ self.centres.T
        squares = white.square().sum(-1, keepdim=True) + self.centres.square().sum(-1) - 2 * products  # [B, K]
        return squares.clamp(min=0).amin(-1)


def _silent(
    logits: Tensor, unsure: Tensor | None, distances: Tensor | None, unlike: float | None
) -> Int64[Tensor, " B"]:
    """Why each picture is not answered; being unlike the training weighs more than being unsure."""
    why = torch.zeros_like(logits[:, 0], dtype=torch.int64) if unsure is None else unsure.to(torch.int64) * UNSURE
    if distances is None or unlike is None:
        return why
    far = (distances > unlike).to(torch.int64)
    return far * UNLIKE + (1 - far) * why


def _distances(member: PredictorMember) -> Distances | None:
    """Only where they decide something."""
    if member.familiar is None or member.decided.unlike is None:
        return None
    return Distances(torch.from_numpy(member.familiar.means), torch.from_numpy(member.familiar.whitening))


def _frozen(model: ViT, attention: AttentionChoice, dtype: torch.dtype) -> ViT:
    """A copy without gradients, dropout or recomputation: one path of attention, one number format of matrices."""
    frozen = copy.deepcopy(model).eval().requires_grad_(False).cpu()
    frozen.encoder.recompute = False
    for part in frozen.modules():
        if isinstance(part, Attention):
            part.choice = attention
        if isinstance(part, nn.Linear):
            part.to(dtype)
    return frozen


def _float32(number: float) -> float:
    """The number that float32 makes of it: the thresholds of classes are compared in that format."""
    return torch.tensor(number, dtype=torch.float32).item()
