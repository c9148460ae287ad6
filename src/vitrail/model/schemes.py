"""How matrices start: one function for each scheme of initial values, and the deviations of what stands alone.

`truncated`   normal of deviation 0.02 (cut at +-2), biases 0: ViT in torch, DeiT, and the explained design.
`torch`       what torch's own layers start with (uniform within fan_in^-0.5), the joint qkv matrix Xavier-uniform with
              zero biases as in torch's multi-head attention; class token and positions normal(0, 1): the blog's, the
              CIFAR and the X-ray designs.
`vitrail`     ours for training from scratch: normal with deviation fan_in^-0.5, and zeros in the last matrix of every
              branch and in the head, so that a fresh model passes its tokens through and answers evenly.
`jax`         the ViT paper's code: Xavier-uniform, q, k and v each for itself; biases of the MLP normal(0, 1e-6), the
              patches and the hidden layer of the head LeCun-normal, the head and the class token zeros.
`mae`         Xavier-uniform throughout, the patches as a matrix and qkv as one.
`dinov2`      truncated, but the patches as torch's convolution starts; class token and registers normal(0, 1e-6).
`timm`        the same matrices and tokens as dinov2.
`ijepa`       truncated, the last matrix of each branch of block i (from 1) divided by sqrt(2 i).
`torchvision` the patches truncated normal with deviation fan_in^-0.5, attention as torch's own, the MLP as in jax, the
              head and the class token zeros.
`mimetic`     truncated, but attention and learned positions as model/mimetic.py says.

Sources: google-research/vision_transformer `models_vit.py`, facebookresearch/mae `models_mae.py`, and
`vision_transformer.py` of facebookresearch/dinov2, facebookresearch/ijepa, timm and torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Generator, Tensor, nn

Fill = Callable[[str, Tensor, Tensor | None, Generator], None]


@dataclass(frozen=True)
class Scheme:
    """One scheme: how a layer's weight and bias start, and the normal deviations of tokens and tables."""

    layer: Fill
    """Fills weight and bias of the layer of that name, in place."""
    table: float = 0.02
    """Positions, relative positions and the distillation token."""
    cls: float = 0.02
    """The class token; 0 for zeros."""
    registers: float = 0.02
    """Never 0: equal registers would stay equal."""


def _truncated(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    nn.init.trunc_normal_(weight, std=0.02, generator=generator)
    _zero(bias)


def _torch(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    if name.endswith("attention.qkv"):
        nn.init.xavier_uniform_(weight, generator=generator)
    else:
        _uniform(weight, weight, generator)
    if bias is not None and ".attention." in name:
        bias.zero_()
    elif bias is not None:
        _uniform(bias, weight, generator)


def _vitrail(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    ends_a_branch = name.endswith(("attention.out", "mlp.fc2")) and name != "pool.attention.out"
    if ends_a_branch or _is_head(name):
        weight.zero_()
    else:
        weight.normal_(std=_fan_in(weight) ** -0.5, generator=generator)
    _zero(bias)


def _jax(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    if _is_patches(name) or name == "head.hidden":
        _lecun_normal(weight, generator)
    elif _is_head(name):
        weight.zero_()
    else:
        _xavier_by_part(name, weight, generator)
    _mlp_bias(name, bias, generator)


def _mae(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    nn.init.xavier_uniform_(weight.view(len(weight), -1), generator=generator)
    if bias is not None and _is_patches(name):
        _uniform(bias, weight, generator)
    else:
        _zero(bias)


def _timm(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    if not _is_patches(name):
        _truncated(name, weight, bias, generator)
        return
    _uniform(weight, weight, generator)
    if bias is not None:
        _uniform(bias, weight, generator)


def _ijepa(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    _truncated(name, weight, bias, generator)
    if name.startswith("encoder.blocks.") and name.endswith(("attention.out", "mlp.fc2")):
        weight.div_((2 * (int(name.split(".")[2]) + 1)) ** 0.5)


def _torchvision(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    if _is_patches(name) or name == "head.hidden":
        nn.init.trunc_normal_(weight, std=_fan_in(weight) ** -0.5, generator=generator)
    elif _is_head(name):
        weight.zero_()
    elif name.endswith(".out"):
        _uniform(weight, weight, generator)
    else:
        nn.init.xavier_uniform_(weight, generator=generator)
    _mlp_bias(name, bias, generator)


SCHEMES: dict[str, Scheme] = {
    "truncated": Scheme(_truncated),
    "torch": Scheme(_torch, table=1.0, cls=1.0, registers=1.0),
    "vitrail": Scheme(_vitrail),
    "jax": Scheme(_jax, cls=0.0, registers=1e-6),
    "mae": Scheme(_mae),
    "dinov2": Scheme(_timm, cls=1e-6, registers=1e-6),
    "timm": Scheme(_timm, cls=1e-6, registers=1e-6),
    "ijepa": Scheme(_ijepa),
    "torchvision": Scheme(_torchvision, cls=0.0, registers=1e-6),
    "mimetic": Scheme(_truncated),
}


def _is_patches(name: str) -> bool:
    """The projection of patches, in whichever way it is stored."""
    return name in ("tokens.patches", "tokens.patches.project")


def _is_head(name: str) -> bool:
    return name in ("head.linear", "head.distillation")


def _fan_in(weight: Tensor) -> int:
    return weight[0].numel()


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        bias.zero_()


def _mlp_bias(name: str, bias: Tensor | None, generator: Generator) -> None:
    """Nearly zero in the MLP, zero elsewhere."""
    if bias is not None and ".mlp." in name:
        bias.normal_(std=1e-6, generator=generator)
    else:
        _zero(bias)


def _uniform(tensor: Tensor, weight: Tensor, generator: Generator) -> None:
    """What torch's linear and convolution layers start with, in the weight and in its bias."""
    bound = _fan_in(weight) ** -0.5
    tensor.uniform_(-bound, bound, generator=generator)


def _lecun_normal(weight: Tensor, generator: Generator) -> None:
    """Deviation fan_in^-0.5 after the cut at two deviations, which alone would make it 0.87962566 of that."""
    std = _fan_in(weight) ** -0.5 / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)


def _xavier_by_part(name: str, weight: Tensor, generator: Generator) -> None:
    """Xavier-uniform for each of the matrices that are stored as one."""
    parts = 3 if name.endswith(".qkv") else 2 if name.endswith(".kv") else 1
    bound = (6 / (_fan_in(weight) + len(weight) // parts)) ** 0.5
    weight.uniform_(-bound, bound, generator=generator)
