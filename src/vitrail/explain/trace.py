"""Trace of a forward pass: one image through every step, with its shape, its source file and a note."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..data import preprocess
from ..data.decoding import decode as decoding
from ..data.source import ImageInput
from ..model.attention import TokenPositions
from ..model.config import T2T_PATCHES
from ..model.tokens import pad_to_patches, patchify
from ..model.vit import ViT
from ..spec import Grid, ImageSpec
from .recorder import inference_mode

PACKAGE_FOLDER = Path(__file__).parent.parent
POOLING_WORDS = {
    "class": "the class token",
    "mean": "mean of the patch tokens",
    "class+mean": "the class token and the mean of the patch tokens, side by side",
    "mean-all": "mean of all tokens",
    "attention": "what a learned probe attends to",
    "patches": "every patch token by itself",
}


class TraceStep(NamedTuple):
    """The output of one step."""

    name: str
    file: str
    """Path inside the package, with forward slashes."""
    shape: tuple[int, ...]
    note: str


def trace_forward(model: ViT, spec: ImageSpec, image: ImageInput) -> list[TraceStep]:
    """Run every step from the file to the outputs with the parts that a prediction uses.

    Raises:
        DataError: the image cannot be read.
        UsageError: its size after fitting is not a multiple of the patch.
    """
    with inference_mode(model):
        images, steps = _trace_preprocessing(spec, image)
        return [*steps, *_trace_model(model, images)]


def format_trace(steps: list[TraceStep]) -> str:
    """The steps as lines of text: number, name, shape, file, note."""
    shapes = [f"[{', '.join(map(str, step.shape))}]" for step in steps]
    widths = [max(map(len, column)) for column in ([s.name for s in steps], shapes, [s.file for s in steps])]
    return "\n".join(
        f"{i:>2}  {step.name:<{widths[0]}}  {shape:<{widths[1]}}  {step.file:<{widths[2]}}  {step.note}".rstrip()
        for i, (step, shape) in enumerate(zip(steps, shapes, strict=True), 1)
    )


def _trace_preprocessing(spec: ImageSpec, image: ImageInput) -> tuple[Tensor, list[TraceStep]]:
    decoded = decoding.decode_image(image, spec)
    stacked = preprocess.to_batch_tensor(decoded[None])
    fitted = preprocess.fit_images(stacked, spec)
    normal = preprocess.normalize(fitted, spec)
    decoded_note = f"{decoded.dtype}, height x width x channels, {decoded.min()} to {decoded.max()}"
    how = "antialiased" if spec.antialias else "not antialiased"
    way = "already that size" if stacked.shape == fitted.shape else f"{spec.fit}, {spec.interpolation}, {how}"
    scale = f"less the mean {_format_numbers(spec.mean)}, over {_format_numbers(spec.std)}"
    return normal, [
        _make_step("decode", decoding.decode_image, decoded, decoded_note),
        _make_step("fit", preprocess.fit_images, fitted, f"channels first, {way}"),
        _make_step(
            "normalise", preprocess.normalize, normal, f"float32, {normal.min():.2f} to {normal.max():.2f}: {scale}"
        ),
    ]


def _trace_model(model: ViT, images: Tensor) -> Iterator[TraceStep]:
    """The steps of `ViT.forward` and `Encoder.forward`, one by one."""
    config = model.config
    padded = pad_to_patches(images, config.patch) if config.pad else images
    flat = patchify(padded, config.patch)  # [1, N, P]
    x, grid = model.tokens(images)
    if config.patches not in T2T_PATCHES:
        height, width = config.patch
        size = f"{height}x{width}x{config.channels} = {config.patch_dim} numbers"
        note = f"{grid.patches} patches ({grid.rows} rows of {grid.columns}) of {size}"
        yield _make_step("patches", patchify, flat, note)
    yield _make_step("tokens", model.tokens, x, _tokens_note(model, grid))
    x = model.positions(x, grid)
    yield _make_step("positions", model.positions, x, _positions_note(model))
    rotary = model.rotary(grid, x)
    if rotary is not None:
        note = f"{config.rotary}: cosines and sines that turn queries and keys, both numbers of a pair by one angle"
        yield _make_step("rotary", model.rotary, rotary.cos, note)
    x = model.encoder.prepare_tokens(x)
    if config.pre_norm:
        note = f"{config.norm} over the {config.width} numbers, before the first block"
        yield TraceStep("pre-norm", _source_file(type(model.encoder)), tuple(x.shape), note)
    positions, last = TokenPositions(grid, None, rotary), [x]
    for i, block in enumerate(model.encoder.blocks):
        x = block(x, positions)
        last = [*last, x][-config.pool_span :]
        weights = f"{config.heads} x {x.shape[1]} x {x.shape[1]} attention weights, heads {config.head_dim} wide"
        note = f"{weights}; then an MLP {config.mlp_width} wide"
        yield _make_step(f"block {i}", block, x, note if i == 0 else "")
    x = model.encoder.apply_final_norm(last)
    if config.final_norm or config.pool_blocks > 1:
        words = [f"{config.norm} over the {config.width} numbers"] * config.final_norm
        read = ", ".join(str(i) for i in range(config.depth) if config.is_pooled_block(i))
        words += [f"those after blocks {read} side by side"] * (config.pool_blocks > 1)
        yield TraceStep("norm", _source_file(type(model.encoder)), tuple(x.shape), ", ".join(words))
    x = model.pool(x)
    distilled = "the class and the distillation token, side by side"
    yield _make_step("pool", model.pool, x, distilled if config.distillation_head else POOLING_WORDS[config.pool])
    x = model.head(x)
    best = int(x.argmax())
    answer = f"{config.head} head; output {best} of 0..{x.shape[-1] - 1} is largest: {x[0, best]:.3f}"
    yield _make_step("head", model.head, x, answer if config.outputs else "features: the model has no outputs")


def _tokens_note(model: ViT, grid: Grid) -> str:
    how = "a convolution" if model.config.patches == "conv" else "a matrix"
    if model.config.patches in T2T_PATCHES:
        how = "three soft splits with attention between them"
    first = f"{model.config.describe_prefix} and " if model.config.prefix else ""
    return f"{first}{grid.patches} patches, projected to {model.config.width} by {how}"


def _positions_note(model: ViT) -> str:
    relative = f"; attention knows offsets up to {model.config.relative}" if model.config.relative else ""
    relative += "; attention adds a learned number for each offset" if model.config.relative_bias else ""
    if model.positions.table is None:
        return "nothing is added" + ("; rotation tells places" if model.config.rotary != "none" else "") + relative
    rows, width = model.positions.table.shape
    kept = "trained" if isinstance(model.positions.table, nn.Parameter) else "fixed"
    return f"a {kept} table is added: {model.config.positions} [{rows}, {width}]{relative}"


def _make_step(name: str, part: nn.Module | Callable[..., Any], value: Any, note: str) -> TraceStep:
    return TraceStep(name, _source_file(type(part) if isinstance(part, nn.Module) else part), tuple(value.shape), note)


def _source_file(part: type | Callable[..., Any]) -> str:
    source = inspect.getsourcefile(inspect.unwrap(part))
    assert source is not None
    return Path(source).resolve().relative_to(PACKAGE_FOLDER.resolve()).as_posix()


def _format_numbers(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
