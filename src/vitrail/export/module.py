"""A predictor as one `nn.Module` for export: uint8 or uint16 images in, calibrated predictions and decisions out."""

from __future__ import annotations

import copy
from collections.abc import Collection

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn

from ..data.preprocess import normalize
from ..data.source import Task
from ..evaluate.cases import SMALLEST_PROBABILITY
from ..evaluate.inference import DTYPES, average_outputs
from ..model.attention import Attention
from ..model.class_maps import to_class_maps
from ..model.config import AttentionChoice
from ..model.layers import disable_autocast
from ..model.vit import ViT
from ..predict import exported
from ..predict.exported import ABSTENTION_REASONS
from ..predict.predictor import PredictorMember
from ..spec import ImageSpec, Interpolation
from .decision_tensors import decision_tensors

UNSURE_CODE, UNLIKE_CODE = ABSTENTION_REASONS.index("unsure"), ABSTENTION_REASONS.index("unlike")


class ExportModule(nn.Module):
    """Images of the spec's type, [B, H, W, C], of the model's size to the outputs in `output_names`.

    `probabilities` float32 [B, K] (for regression `values`, in the user's units); `logits` float32 [B, K], averaged
    over all views, before the temperature; `decisions` int64, the predicted class [B] or 0 and 1 for each label [B, K]
    (not for regression); of anomaly `logits` are the score [B, 1] and `probabilities` [B, 2] its p-value and what that
    lacks to 1; `abstained` int64 [B], an index into `exported.ABSTENTION_REASONS`; `distances` float64 [B]
    from the training images, if a threshold was fitted; and `case_scores` float32 [B], if attention pools cases, for
    `case_file`. Of segmentation only `masks` uint8 [B, H, W], the class of every pixel, and `abstained`.
    What `Decisions` computes in float64 is float64 here too.

    Args:
        resize: take images of any size, and resize them by `GraphResize`.
        attention: path of attention; "open" becomes plain matrix products in a graph.
        precision: of stored matrices and their products, as `torch.autocast`; decisions are always computed in float32
            and float64.
        kept: names of linear layers that compute in float32 all the same.
    """

    def __init__(
        self,
        member: PredictorMember,
        resize: bool = False,
        attention: AttentionChoice = "open",
        precision: str = "float32",
        kept: Collection[str] = (),
    ):
        super().__init__()
        self.spec = member.spec
        self.task = member.task
        self.views = member.settings.views
        self.resizing = GraphResize(member.spec) if resize else None
        self.precision = precision
        self.model = freeze_model(member.model, attention, DTYPES[precision], kept)
        self.distances = None
        if member.feature_stats is not None and member.decisions.unlike is not None:  # a distance threshold was fitted
            stats = member.feature_stats
            self.distances = MahalanobisDistance(torch.from_numpy(stats.means), torch.from_numpy(stats.whitening))
        self.scoring = None
        if member.case_pool is not None and member.case_pool.query:
            self.scoring = CaseScores(member.case_pool.query)
        heads: dict[str, type[_DecisionHead]] = {
            "regression": RegressionHead, "anomaly": AnomalyHead, "segmentation": SegmentationHead,
        }  # fmt: skip
        self.decision: nn.Module = heads.get(member.task, ProbabilityHead)(member)
        self.output_names = exported.list_output_names(
            member.task, self.distances is not None, self.scoring is not None
        )

    def forward(self, images: Integer[Tensor, "B H W C"]) -> tuple[Tensor, ...]:
        images = images if self.resizing is None else self.resizing(images)
        x = normalize(images.permute(0, 3, 1, 2), self.spec)  # [B, C, H, W] float32
        views = torch.cat(list(self.views.iter_views(x)))  # [views * B, C, H, W]
        logits, features = self._run_in_precision(views)
        if self.views.num_views > 1:
            logits = average_outputs(logits.unflatten(0, (self.views.num_views, -1)), self.task)
        distances = None if self.distances is None or features is None else self.distances(features)
        outputs = self.decision(logits, distances)
        outputs = (*outputs, distances) if distances is not None else outputs
        return outputs if self.scoring is None or features is None else (*outputs, self.scoring(features))

    def _run_in_precision(self, views: Tensor) -> tuple[Tensor, Tensor | None]:
        """Outputs and features as float32, computed in `precision`."""
        if self.precision == "float32":
            return self._run_model(views)
        with torch.autocast("cpu", DTYPES[self.precision]):
            logits, features = self._run_model(views)
        return logits.float(), None if features is None else features.float()

    def _run_model(self, views: Tensor) -> tuple[Tensor, Tensor | None]:
        """Outputs for all views, and the pooled features of the first view if anything is computed of them."""
        if self.distances is None and self.scoring is None:
            return self.model(views), None
        values = self.model.features(views, keep=("pooled", "outputs"))
        pooled = values["pooled"].unflatten(0, (self.views.num_views, -1))[0]  # [B, P]
        return values["outputs"], pooled[:, -self.model.config.width :]


def probabilities_to_logits(probabilities: Float[Tensor, "n K"], task: Task) -> Float[Tensor, "n K"]:
    """Logits that give these probabilities of classes or labels; numbers of regression unchanged."""
    if task == "regression":
        return probabilities
    logs = probabilities.clamp(min=SMALLEST_PROBABILITY).log()
    return logs - (1 - probabilities).clamp(min=SMALLEST_PROBABILITY).log() if task == "multilabel" else logs


class CaseScores(nn.Module):
    """Attention scores float32 [B] of images in their cases."""

    query: Tensor

    def __init__(self, query: tuple[float, ...]):
        super().__init__()
        self.register_buffer("query", torch.tensor(query, dtype=torch.float64))

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        return (features.double() @ self.query).float()


class _DecisionHead(nn.Module):
    """Calibration or target scaling, and the tensors of `decision_tensors` as buffers."""

    unlike: Tensor

    def __init__(self, member: PredictorMember):
        super().__init__()
        self.task = member.task
        for name, values in decision_tensors(member.task, member.classes, member.decisions).items():
            self.register_buffer(name, torch.from_numpy(values))

    def decide_abstention(
        self, logits: Tensor, unsure: Tensor | None, distances: Float[Tensor, " B"] | None
    ) -> Int64[Tensor, " B"]:
        """Abstention code of each image; "unlike" takes precedence over "unsure"."""
        code = torch.zeros_like(logits[:, 0], dtype=torch.int64)
        code = code if unsure is None else unsure.to(torch.int64) * UNSURE_CODE
        if distances is None:
            return code
        far = (distances > self.unlike).to(torch.int64)
        return far * UNLIKE_CODE + (1 - far) * code


class ProbabilityHead(_DecisionHead):
    """`Decisions` as a module: logits to calibrated probabilities and decisions, of classes or labels.

    No tensor that a decision may change is computed with another such tensor, so that no optimizer of graphs makes one
    of both.
    """

    temperature: Tensor
    prior_ratio: Tensor
    thresholds: Tensor
    choice: Tensor
    sure: Tensor

    def __init__(self, member: PredictorMember):
        super().__init__(member)
        temperature = member.decisions.temperature or (1.0,)
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float64))

    def forward(self, logits: Float[Tensor, "B K"], distances: Float[Tensor, " B"] | None) -> tuple[Tensor, ...]:
        calibrated = logits.double() / self.temperature
        if self.task == "multilabel":
            chances = calibrated.sigmoid().float().double()
            moved = chances * self.prior_ratio
            probabilities = (moved / (moved + (1 - chances))).float()
            decisions = (probabilities.double() >= self.thresholds).to(torch.int64)  # [B, K]
            return probabilities, logits, decisions, self.decide_abstention(logits, None, distances)
        moved = calibrated.softmax(-1).float().double() * self.prior_ratio
        probabilities = (moved / moved.sum(-1, keepdim=True)).float()
        abstained = self.decide_abstention(logits, probabilities.amax(-1) < self.sure, distances)
        return probabilities, logits, self._decide_classes(probabilities), abstained

    def _decide_classes(self, probabilities: Float[Tensor, "B K"]) -> Int64[Tensor, " B"]:
        likeliest = probabilities.argmax(-1)
        if probabilities.shape[-1] != 2:
            return likeliest
        reached = (probabilities >= self.thresholds).to(torch.int64)
        options = torch.stack([likeliest, reached[:, 1], 1 - reached[:, 0]], -1)
        return (options * self.choice).sum(-1)


class RegressionHead(_DecisionHead):
    """Standardised outputs to numbers in the user's units."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, member: PredictorMember):
        super().__init__(member)
        K = len(member.classes)
        mean, deviation = (0.0,) * K, (1.0,) * K
        if member.scaling is not None:
            mean, deviation = member.scaling.mean, member.scaling.deviation
        wide = member.scaling is not None and member.scaling.needs_float64
        self.dtype = torch.float64 if wide else torch.float32
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float64))

    def forward(self, logits: Float[Tensor, "B K"], distances: Float[Tensor, " B"] | None) -> tuple[Tensor, ...]:
        values = (logits.double() * self.deviation + self.mean).to(self.dtype)
        return values, logits, self.decide_abstention(logits, None, distances)


class AnomalyHead(_DecisionHead):
    """Scores to p-values and decisions, by the scores of the good images of the training."""

    thresholds: Tensor
    calibration: Tensor
    weights: Tensor

    def __init__(self, member: PredictorMember):
        super().__init__(member)
        rules = member.decisions
        weights = rules.calibration_weights or (1.0,) * len(rules.calibration)
        self.total = 1 + sum(weights)
        self.register_buffer("calibration", torch.tensor(rules.calibration, dtype=torch.float64))
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))

    def forward(self, logits: Float[Tensor, "B 1"], distances: Float[Tensor, " B"] | None) -> tuple[Tensor, ...]:
        scores = logits.double()  # [B, 1]
        p_values = (1 + ((self.calibration >= scores).double() * self.weights).sum(-1)) / self.total
        probabilities = torch.stack([p_values, 1 - p_values], dim=-1).float()
        found = (scores > self.thresholds)[:, 0].to(torch.int64)
        return probabilities, logits, found, self.decide_abstention(logits, None, distances)


class SegmentationHead(_DecisionHead):
    """Outputs of patches to the class of every pixel."""

    def __init__(self, member: PredictorMember):
        super().__init__(member)
        assert isinstance(member.model, ViT)
        self.config = member.model.config

    def forward(self, logits: Float[Tensor, "B N K"], distances: Float[Tensor, " B"] | None) -> tuple[Tensor, ...]:
        return to_class_maps(logits, self.config), torch.zeros_like(logits[:, 0, 0], dtype=torch.int64)


class MahalanobisDistance(nn.Module):
    """`FeatureStats.mahalanobis_distances` as a module: squared distance to the nearest class mean, float64."""

    whitening: Tensor
    centres: Tensor

    def __init__(self, means: Tensor, whitening: Tensor):
        super().__init__()
        self.register_buffer("whitening", whitening.double())
        self.register_buffer("centres", means.double() @ whitening.double())  # [K, D]

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        x = features.double()
        white = x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12) @ self.whitening  # [B, D]
        products = white @ self.centres.T
        squares = white.square().sum(-1, keepdim=True) + self.centres.square().sum(-1) - 2 * products  # [B, K]
        return squares.clamp(min=0).amin(-1)


class _Float32Linear(nn.Linear):
    """A linear layer that computes in float32 where the others do not."""

    def forward(self, x: Tensor) -> Tensor:
        with disable_autocast("cpu"):
            return F.linear(x.float(), self.weight, self.bias)


class _Float32LayerNorm(nn.LayerNorm):
    """A norm of float32 numbers: a graph has one type for its input and its weights, and squares overflow float16."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


def freeze_model(model: nn.Module, attention: AttentionChoice, dtype: torch.dtype, kept: Collection[str] = ()) -> ViT:
    """A copy for inference, without gradient checkpointing, with one attention path and one precision of matrices.

    Args:
        kept: names of linear layers that stay in float32.
    """
    assert isinstance(model, ViT)
    frozen = copy.deepcopy(model).eval().requires_grad_(False).cpu()
    frozen.encoder.grad_checkpointing = False
    for name, part in frozen.named_modules():
        if isinstance(part, Attention):
            part.choice = attention
        if isinstance(part, nn.Linear):
            if name in kept:
                part.__class__ = _Float32Linear
            else:
                part.to(dtype)
        if isinstance(part, nn.LayerNorm) and dtype == torch.float16:
            part.__class__ = _Float32LayerNorm
    return frozen


# -- Resizing inside the graph.

KERNEL_SUPPORT: dict[Interpolation, float] = {"bilinear": 1.0, "bicubic": 2.0}
"""Radius of the interpolation kernel, in pixels of the smaller image."""
MAX_WEIGHT = 1 << 15
"""Fixed-point weights are below this."""
MAX_FRACTION_BITS = 22
"""Most fractional bits of a fixed-point weight."""


class GraphResize(nn.Module):
    """Resize levels [B, H, W, C] to levels [B, h, w, C] of the spec's size, by its `fit`.

    Each axis is one product with a weight matrix computed in the graph. With antialiasing it follows the uint8 kernel
    of `data.preprocess`: fixed-point weights, columns first, rounded in between. Sums are float32, so a value between
    two grey levels is sometimes rounded the other way. At a bit depth of 16 weights are float32, and sums rounded once.
    """

    def __init__(self, spec: ImageSpec):
        super().__init__()
        self.spec = spec

    def forward(self, images: Integer[Tensor, "B H W C"]) -> Integer[Tensor, "B h w C"]:
        x = images.permute(0, 3, 1, 2).float()  # [B, C, H, W]
        rows, columns = (torch.arange(side, dtype=torch.float64) for side in x.shape[-2:])
        height, width = rows[-1] + 1, columns[-1] + 1
        inner = self._resized_size(height, width)
        x = self._resize_axis(x, columns, width, inner[1], self.spec.width)  # [B, C, H, w]
        x = self._resize_axis(x.transpose(-1, -2), rows, height, inner[0], self.spec.height)  # [B, C, w, h]
        levels = x.permute(0, 3, 2, 1).round().clamp(0, self.spec.white)
        return levels.to(torch.uint8 if self.spec.bit_depth == 8 else torch.int32)

    def _resized_size(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Height and width before the centre crop or the padding, known only when the graph runs."""
        spec, cover = self.spec, self.spec.resize_size
        if spec.fit == "squash":
            return torch.full_like(height, cover[0]), torch.full_like(width, cover[1])
        if spec.fit == "crop" and cover[0] == cover[1]:
            short = torch.minimum(height, width)
            return (cover[0] * height / short).floor(), (cover[1] * width / short).floor()
        if spec.fit == "crop":
            scale = torch.maximum(cover[0] / height, cover[1] / width)
            return (height * scale).round().clamp(min=cover[0]), (width * scale).round().clamp(min=cover[1])
        scale = torch.minimum(spec.height / height, spec.width / width)
        return (height * scale).round().clamp(1, spec.height), (width * scale).round().clamp(1, spec.width)

    def _resize_axis(self, x: Tensor, pixels: Tensor, old: Tensor, inner: Tensor, size: int) -> Tensor:
        """Resize the last axis, with pixels at `places`, to `inner` pixels and keep the middle `size` of them."""
        left_out = (inner - size) / 2
        if self.spec.fit == "pad":
            shift = left_out.ceil()
        else:
            shift = left_out.round() if self.spec.crop_start == "even" else left_out.floor()
        new = torch.arange(size, dtype=torch.float64) + shift
        if not self.spec.antialias:
            weights = compute_interpolation_weights(new, pixels, old, inner, self.spec.interpolation)
            return x @ _zero_border_weights(weights, new, inner).float().T
        all_new = torch.cat([new, torch.zeros_like(inner)[None], inner[None] - 1])  # edges have the largest weights
        weights = compute_antialias_weights(all_new, pixels, old, inner, self.spec.interpolation)
        if self.spec.bit_depth == 16:
            return x @ _zero_border_weights(weights, all_new, inner)[:size].float().T
        whole, one = quantize_resize_weights(_zero_border_weights(weights, all_new, inner))
        return (x @ whole[:size].float().T / one + 0.5).floor().clamp(0, 255)


def compute_antialias_weights(
    new: Tensor, pixels: Tensor, old: Tensor, inner: Tensor, interpolation: Interpolation
) -> Float[Tensor, "n N"]:
    """Antialiased weights of all old pixels in each new one; each row sums to 1."""
    scale = old / inner
    wide = scale.clamp(min=1)
    centre = (scale * (new + 0.5))[:, None]
    reach = KERNEL_SUPPORT[interpolation] * wide
    first, beyond = (centre - reach + 0.5).trunc(), (centre + reach + 0.5).trunc()
    weights = _interpolation_kernel(((pixels - centre + 0.5) / wide).abs(), interpolation, -0.5) * (
        (pixels >= first) & (pixels < beyond)
    )
    total = weights.sum(1, keepdim=True)
    return weights / torch.where(total == 0, torch.ones_like(total), total)


def quantize_resize_weights(weights: Float[Tensor, "n N"]) -> tuple[Tensor, Tensor]:
    """Weights in fixed point, and its value of 1: as many fractional bits as fit into 16 bits."""
    powers = 2.0 ** torch.arange(1, MAX_FRACTION_BITS + 1, dtype=torch.float64)
    fits = ((weights.max() * powers + 0.5).floor() < MAX_WEIGHT).to(torch.float64)
    one = 2.0 ** fits.sum()
    scaled = weights * one
    return (scaled.abs() + 0.5).floor() * scaled.sign(), one.float()


def compute_interpolation_weights(
    new: Tensor, pixels: Tensor, old: Tensor, inner: Tensor, interpolation: Interpolation
) -> Float[Tensor, "n N"]:
    """Weights of old pixels in each new one without antialiasing; edge pixels are repeated."""
    position = (new + 0.5) * (old / inner) - 0.5
    position = position.clamp(min=0) if interpolation == "bilinear" else position
    first, near = position.floor(), int(KERNEL_SUPPORT[interpolation])
    weights = torch.zeros_like(first[:, None] * pixels)
    for tap in range(1 - near, near + 1):
        weight = _interpolation_kernel((position - first - tap).abs(), interpolation, -0.75)
        pixel = torch.minimum((first + tap).clamp(min=0), old - 1)
        weights = weights + weight[:, None] * (pixel[:, None] == pixels)
    return weights


def _zero_border_weights(weights: Tensor, new: Tensor, inner: Tensor) -> Tensor:
    """Set the weights of new pixels in the padding to 0."""
    return weights * ((new >= 0) & (new < inner))[:, None]


def _interpolation_kernel(distance: Tensor, interpolation: Interpolation, a: float) -> Tensor:
    """Bilinear or cubic (Keys 1981) kernel at a distance in pixels."""
    if interpolation == "bilinear":
        return (1 - distance).clamp(min=0)
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return torch.where(distance < 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))
