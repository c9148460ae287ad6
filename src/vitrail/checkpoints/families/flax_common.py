"""What all of Google's flax files share: names of layers, kernels that stand the other way round, heads on an axis.

A dense layer computes x @ kernel, so its kernel is our matrix transposed; the projections of attention have an axis for
the heads, kernels [D, A, d] to queries, keys and values and [A, d, D] back; a convolution's kernel is [p, p, C, D].
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import DamagedFileError
from ...model.config import ViTConfig
from ..complete import nearest
from ..layouts import Ignore, Name, Parts, Rule
from ..shapes import agree, has, vote
from ..steps import TRANSPOSED, Step
from ..told import Told

CONTAINERS = ("opt/target/", "params/img/", "params/")
"""What stands before every name of a whole training state, and of a model of pictures and words."""
BLOCK = "Transformer/encoderblock_{i}"
OURS = "encoder.blocks.{i}"


def _conv(ours: Tensor, config: ViTConfig) -> Tensor:
    return ours.reshape(len(ours), config.channels, *config.patch).permute(2, 3, 1, 0)


def _joined(theirs: list[Tensor], likes: list[Tensor]) -> list[Tensor]:
    return [torch.cat([kernel.flatten(1).T for kernel in theirs])]


def _by_heads(ours: list[Tensor], config: ViTConfig) -> list[Tensor]:
    count = len(ours[0]) // config.attention_width
    return [part.T.reshape(-1, config.heads, config.head_numbers) for part in ours[0].chunk(count)]


def _joined_biases(theirs: list[Tensor], likes: list[Tensor]) -> list[Tensor]:
    return [torch.cat([bias.flatten() for bias in theirs])]


def _biases_by_heads(ours: list[Tensor], config: ViTConfig) -> list[Tensor]:
    return list(ours[0].reshape(-1, config.heads, config.head_numbers))


CONV: Step[Tensor] = Step(None, _conv)
"""Their patch projection is a convolution kernel [p, p, C, D]."""
KERNELS: Step[list[Tensor]] = Step(_joined, _by_heads)
"""Their projections to one, two or three of queries, keys and values, each [D, A, d], are the rows of our matrix."""
BIASES: Step[list[Tensor]] = Step(_joined_biases, _biases_by_heads)
"""Their biases, each [A, d]."""
OUT: Step[Tensor] = Step(
    lambda theirs, like: theirs.flatten(0, 1).T,
    lambda ours, config: ours.T.reshape(config.heads, config.head_numbers, len(ours)),
)
"""Their projection back from the heads [A, d, D]."""


def dense(theirs: str, ours: str) -> tuple[Rule, ...]:
    """Rules for one dense layer."""
    return Name(f"{theirs}/kernel", f"{ours}.weight", TRANSPOSED), Name(f"{theirs}/bias", f"{ours}.bias")


def norm(theirs: str, ours: str) -> tuple[Rule, ...]:
    """Rules for one normalisation."""
    return Name(f"{theirs}/scale", f"{ours}.weight"), Name(f"{theirs}/bias", f"{ours}.bias")


def projections(theirs: str, parts: tuple[str, ...], ours: str) -> tuple[Rule, ...]:
    """Rules for some of query, key and value that make one matrix of ours, and its bias."""
    return (
        Parts(tuple(f"{theirs}/{part}/kernel" for part in parts), (f"{ours}.weight",), KERNELS),
        Parts(tuple(f"{theirs}/{part}/bias" for part in parts), (f"{ours}.bias",), BIASES),
    )


def out(theirs: str, ours: str) -> tuple[Rule, ...]:
    """Rules for the projection back from the heads."""
    return Name(f"{theirs}/out/kernel", f"{ours}.weight", OUT), Name(f"{theirs}/out/bias", f"{ours}.bias")


def block_rules(attention: str, second_norm: str, mlp: str) -> tuple[Rule, ...]:
    """Rules for everything inside the blocks, whose layers flax has numbered in one of two ways."""
    return (
        *norm(f"{BLOCK}/LayerNorm_0", f"{OURS}.norm1"),
        *projections(f"{BLOCK}/{attention}", ("query", "key", "value"), f"{OURS}.attention.qkv"),
        *out(f"{BLOCK}/{attention}", f"{OURS}.attention.out"),
        *norm(f"{BLOCK}/{second_norm}", f"{OURS}.norm2"),
        *dense(f"{BLOCK}/{mlp}/Dense_0", f"{OURS}.mlp.fc1"),
        *dense(f"{BLOCK}/{mlp}/Dense_1", f"{OURS}.mlp.fc2"),
    )


END: tuple[Rule, ...] = (
    *norm("Transformer/encoder_norm", "encoder.norm"),
    *dense("pre_logits", "head.hidden"),
    *dense("head", "head.linear"),
)
"""Rules for what follows the blocks."""
AROUND: tuple[Rule, ...] = (
    Ignore("txt/*", reason="the tower of words"),
    Ignore("[tb]", reason="temperature and bias of the comparison of pictures and words"),
    Ignore("opt/*", reason="the optimizer's state"),
    Ignore("step", reason="the count of training steps"),
)
"""Rules for what stands beside the model in the file of a training, or of pictures and words."""


def outside_container(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names as they are inside the container that a file has, if it has one.

    Beside `params/img/` the tower of words loses its `params/` too, and falls under the rules of `AROUND`.

    Raises:
        DamagedFileError: two tensors would get one name.
    """
    for container in CONTAINERS:
        if any(name.startswith(f"{container}embedding/") for name in tensors):
            outer = "params/" if container == "params/img/" else container
            inside = {name: name.removeprefix(container).removeprefix(outer) for name in tensors}
            if len(set(inside.values())) < len(tensors):
                twice = Counter(inside.values()).most_common(1)[0][0]
                raise DamagedFileError(f"The file has {twice} twice, within {container} and outside. Delete one.")
            return {inside[name]: tensor for name, tensor in tensors.items()}
    return tensors


def encoder_settings(tensors: Mapping[str, Tensor], told: Told, attention: str, mlp: str) -> dict[str, Any]:
    """What the blocks and the head tell: the kernels' own axes say how many heads there are.

    Raises:
        DamagedFileError: tensors disagree, or the file is a hybrid with a ResNet before the blocks.
        UsageError: the caller says other heads.
    """
    if has(tensors, "conv_root/kernel"):
        raise DamagedFileError(
            "The file has conv_root/kernel: a hybrid, whose patches come out of a ResNet. Only plain Vision "
            "Transformers can be read."
        )
    numbers = [re.match(r"Transformer/encoderblock_(\d+)/", name) for name in tensors]
    biases = [f"{BLOCK}/{attention}/{part}/bias" for part in ("query", "key", "value")]
    norms = [
        f"{place}/{part}"
        for place in ("Transformer/encoder_norm", f"{BLOCK}/LayerNorm_0")
        for part in ("scale", "bias")
    ]
    hidden = (
        (f"{BLOCK}/{mlp}/Dense_0/bias", 0),
        (f"{BLOCK}/{mlp}/Dense_0/kernel", 1),
        (f"{BLOCK}/{mlp}/Dense_1/kernel", 0),
    )
    width = vote(tensors, "width", *((name, 0) for name in norms))
    heads = vote(tensors, "heads", *((name, 0) for name in biases))
    numbers_per_head = vote(tensors, "width of a head", *((name, 1) for name in biases))
    headed = has(tensors, "head/kernel", "head/bias")
    return {
        "width": width,
        "depth": 1 + max((int(number[1]) for number in numbers if number), default=-1),
        "heads": agree(told.heads, heads, "heads", biases[0].format(i=0)),
        "head_width": None if heads * numbers_per_head == width else numbers_per_head,
        "mlp_width": vote(tensors, "MLP width", *hidden),
        "outputs": vote(tensors, "number of outputs", ("head/bias", 0), ("head/kernel", 1)) if headed else 0,
        "head": "tanh" if has(tensors, "pre_logits/kernel", "pre_logits/bias") else "linear",
        "init": "jax",
    }


def patch_of(kernel: Tensor, told: Told) -> tuple[int, int]:
    """Height and width of a patch, from the kernel [p, p, C, D].

    Raises:
        DamagedFileError: it is not square, and the caller does not say in `settings` that it is so.
    """
    patch = (kernel.shape[0], kernel.shape[1])
    if patch[0] != patch[1] and told.settings.get("patch") != patch:
        raise DamagedFileError(
            f"embedding/kernel must begin with a square patch. Got {list(kernel.shape)}. If its patches are "
            f"{patch[0]}x{patch[1]} pixels, say patch in settings."
        )
    return patch


def missing(tensors: Mapping[str, Tensor], name: str, why: str) -> DamagedFileError:
    """The error for a tensor without which the rest makes no sense."""
    return DamagedFileError(f"The file has no tensor {name}{nearest(name, tensors)}, {why}.")
