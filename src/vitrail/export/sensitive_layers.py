"""Find the linear layers that fewer bits harm: by their error in int8, and by numbers that float16 does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, UInt
from torch import Tensor, nn

from ..data.preprocess import normalize, to_batch_tensor
from ..predict.predictor import AnsweringModel, as_predictor
from .ensemble import name_models
from .module import freeze_model

NUM_IMAGES, BATCH_SIZE = 32, 8
"""Most images that layers are measured on, and how many at a time."""
FLOAT16_LIMIT = float(np.finfo(np.float16).max) / 2
"""Layers that reach it on the images seen compute in float32: other images may reach twice as far."""


@dataclass
class LayerHarm:
    """What fewer bits do to one linear layer."""

    name: str
    """Of the module, as in the model's state."""
    peak: float = 0.0
    """Largest absolute number among its inputs, outputs and weights."""
    error: float = 0.0
    output: float = 0.0
    """Sums of squares of the error that int8 makes in its outputs, and of these."""

    @property
    def int8_error(self) -> float:
        """Error of the outputs in int8, as a fraction of their size."""
        return (self.error / self.output) ** 0.5 if self.output else 0.0


def measure_layers(answering: AnsweringModel, images: UInt[np.ndarray, "n H W C"]) -> list[LayerHarm]:
    """The linear layers of each model in the order in which they run, measured on preprocessed images."""
    predictor, layers = as_predictor(answering), dict[str, LayerHarm]()

    def measure(name: str, layer: nn.Linear, x: Tensor, y: Tensor) -> None:
        harm = layers.setdefault(name, LayerHarm(name))
        harm.peak = max(harm.peak, *(float(each.abs().max()) for each in (x, y, layer.weight)))
        harm.error += float((F.linear(round_inputs(x), round_weights(layer.weight), layer.bias) - y).square().sum())
        harm.output += float(y.square().sum())

    for prefix, member in zip(name_models(predictor), predictor.members, strict=True):
        model = freeze_model(member.model, "open", torch.float32)
        for name, layer in model.named_modules(prefix=prefix):
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(lambda layer, x, y, name=name: measure(name, layer, x[0], y))
        with torch.inference_mode():
            for batch in to_batch_tensor(images[:NUM_IMAGES]).split(BATCH_SIZE):
                model(normalize(batch, member.spec))
    return list(layers.values())


def round_inputs(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Numbers rounded to 256 levels between their smallest and largest, with 0 among them."""
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    step = ((high - low) / 255).clamp(min=1e-12)
    return ((x - low) / step).round() * step + low


def round_weights(weights: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
    """Weights rounded to 255 levels about 0, in steps of their own for each output."""
    step = (weights.abs().amax(1, keepdim=True) / 127).clamp(min=1e-12)
    return (weights / step).round() * step


def iter_kept_layers(layers: Sequence[LayerHarm]) -> Iterator[tuple[str, ...]]:
    """The layers to leave out of int8: the one that is harmed most, the worst 2, 4, 8, ..., and half of all at most."""
    worst = sorted(layers, key=lambda layer: -layer.int8_error)
    count = 1
    while 2 * count <= len(worst):
        yield tuple(layer.name for layer in worst[:count])
        count *= 2


def list_overflowing(layers: Sequence[LayerHarm]) -> tuple[str, ...]:
    """The layers whose numbers come near the largest of float16."""
    return tuple(layer.name for layer in layers if layer.peak > FLOAT16_LIMIT)


def describe_peak(layers: Sequence[LayerHarm]) -> str:
    """The layer with the largest number, in a sentence."""
    worst = max(layers, key=lambda layer: layer.peak)
    return f"The largest number is in {worst.name}, {worst.peak:,.0f}, and float16 ends at 65,504."


def match_layers(matrices: Mapping[str, Float32[np.ndarray, ...]], model: nn.Module) -> dict[str, str]:
    """The layer of each stored matrix [in, out] of a graph, by its numbers; those of no layer are left out."""
    layers = {
        layer.weight.detach().float().numpy().T.tobytes(): name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    }
    found = {name: layers.get(np.ascontiguousarray(matrix).tobytes()) for name, matrix in matrices.items()}
    return {name: layer for name, layer in found.items() if layer is not None}
