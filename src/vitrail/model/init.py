"""All initial values: matrices by the scheme that the configuration names, then norms, tokens, tables and buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ..errors import UsageError
from .config import ViTConfig
from .positions import dinov3_periods, fixed_table, mixed_frequencies
from .soft_split import fill_random_features


@torch.no_grad()
def initialise(model: nn.Module, config: ViTConfig, generator: Generator) -> None:
    """Give every parameter and buffer of a ViT its initial value, drawn from `generator` in a fixed order.

    Matrices come first, in the order of the modules, then other parameters, then buffers, so that a new part that
    draws last changes nothing in models without it.
    """
    scheme = INIT_SCHEMES[config.init]
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None:
            continue
        if weight.ndim == 1:  # a norm
            for part, tensor in module.named_parameters(recurse=False):
                tensor.fill_(1.0 if part == "weight" else 0.0)
        else:
            scheme.init_layer(name, weight, module._parameters.get("bias"), generator)
    for name, parameter in model.named_parameters():
        _fill_parameter(name, parameter, config, scheme, generator)
    for name, buffer in model.named_buffers():
        match name.rpartition(".")[2]:
            case "table":
                buffer.copy_(fixed_table(config.positions, config.grid, config.width, config.table_prefix))
            case "periods":
                buffer.copy_(dinov3_periods(config.head_dim))
            case "features":
                fill_random_features(buffer, generator)
            case "rows":  # of a bank that is still to be filled
                buffer.zero_()
            case _:
                raise AssertionError(f"{name} has no initial value.")
    if config.init == "mimetic":
        apply_mimetic_init(model, config, generator)


def _fill_parameter(name: str, parameter: Tensor, config: ViTConfig, scheme: InitScheme, generator: Generator) -> None:
    """A parameter that belongs to no layer, by the last part of its name."""
    match name.rpartition(".")[2]:
        case "weight" | "bias":  # filled with its layer
            return
        case "cls":
            _fill_normal(parameter, scheme.cls, generator)
        case "registers":
            _fill_normal(parameter, scheme.registers, generator)
        case "table" | "distillation" | "key_rows" | "key_columns" | "value_rows" | "value_columns":
            _fill_normal(parameter, scheme.table, generator)
        case "probe" if config.init == "jax":  # Xavier-uniform, as big_vision draws a matrix of one row
            bound = (6 / (1 + config.width)) ** 0.5
            parameter.uniform_(-bound, bound, generator=generator)
        case "probe":  # as timm
            _fill_normal(parameter, config.width**-0.5, generator)
        case "queries":  # unlike each other, and as large as tokens
            _fill_normal(parameter, 1.0, generator)
        case "scale1" | "scale2":
            assert config.layer_scale is not None
            parameter.fill_(config.layer_scale)
        case "qv_bias" | "prefix_angles":
            parameter.zero_()
        case "frequencies":
            parameter.copy_(mixed_frequencies(config.heads, config.head_dim, generator))
        case _:
            raise AssertionError(f"{name} has no initial value.")


def _fill_normal(parameter: Tensor, std: float, generator: Generator) -> None:
    if std == 0:
        parameter.zero_()
    else:
        nn.init.trunc_normal_(parameter, std=std, a=-100 * std, b=100 * std, generator=generator)


# Initial values of matrices: one function for each scheme, and the standard deviations of tokens and tables.
#
# `truncated` normal of deviation 0.02 (cut at +-2), biases 0: ViT in torch, DeiT, and the explained design. `torch`
# what torch's own layers start with (uniform within fan_in^-0.5), the joint qkv matrix Xavier-uniform with zero
# biases as in torch's multi-head attention; class token and positions normal(0, 1): the blog's, the CIFAR and the
# X-ray designs. `vitrail` ours for training from scratch: normal with deviation fan_in^-0.5, and zeros in the last
# matrix of every branch and in the head, so that a new model passes its tokens through and gives equal outputs. `jax`
# the ViT paper's code: Xavier-uniform, q, k and v each for itself; biases of the MLP normal(0, 1e-6), the patches and
# the hidden layer of the head LeCun-normal, the head and the class token zeros. `mae` Xavier-uniform throughout, the
# patches as a matrix and qkv as one. `dinov2` truncated, but the patches as torch's convolution starts; class token
# and registers normal(0, 1e-6). `timm` the same matrices and tokens as dinov2. `ijepa` truncated, the last matrix of
# each branch of block i (from 1) divided by sqrt(2 i). `torchvision` the patches truncated normal with deviation
# fan_in^-0.5, attention as torch's own, the MLP as in jax, the head and the class token zeros. `mimetic` truncated,
# but attention and learned positions as `apply_mimetic_init` says.
#
# Sources: google-research/vision_transformer `models_vit.py`, facebookresearch/mae `models_mae.py`, and
# `vision_transformer.py` of facebookresearch/dinov2, facebookresearch/ijepa, timm and torchvision.

LayerInit = Callable[[str, Tensor, Tensor | None, Generator], None]


@dataclass(frozen=True)
class InitScheme:
    """One scheme: initial values of layers, and the standard deviations of tokens and tables."""

    init_layer: LayerInit
    """Fills weight and bias of the layer of that name, in place."""
    table: float = 0.02
    """Positions, relative positions and the distillation token."""
    cls: float = 0.02
    """The class token; 0 for zeros."""
    registers: float = 0.02
    """Above 0: equal registers would stay equal."""


def _init_truncated(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    nn.init.trunc_normal_(weight, std=0.02, generator=generator)
    _zero_bias(bias)


def _init_torch(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    if name.endswith("attention.qkv"):
        nn.init.xavier_uniform_(weight, generator=generator)
    else:
        _fill_uniform(weight, weight, generator)
    if bias is not None and ".attention." in name:
        bias.zero_()
    elif bias is not None:
        _fill_uniform(bias, weight, generator)


def _init_vitrail(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    ends_a_branch = name.endswith(("attention.out", "mlp.fc2")) and name != "pool.attention.out"
    if ends_a_branch or _is_head(name):
        weight.zero_()
    else:
        weight.normal_(std=_fan_in(weight) ** -0.5, generator=generator)
    _zero_bias(bias)


def _init_jax(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    if _is_patch_projection(name) or name == "head.hidden":
        std = _fan_in(weight) ** -0.5 / 0.87962566103423978  # that of a normal variable cut at two deviations
        nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
    elif _is_head(name):
        weight.zero_()
    else:  # Xavier-uniform for each of the matrices that are stored as one
        parts = 3 if name.endswith(".qkv") else 2 if name.endswith(".kv") else 1
        bound = (6 / (_fan_in(weight) + len(weight) // parts)) ** 0.5
        weight.uniform_(-bound, bound, generator=generator)
    _init_mlp_bias(name, bias, generator)


def _init_mae(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    nn.init.xavier_uniform_(weight.view(len(weight), -1), generator=generator)
    if bias is not None and _is_patch_projection(name):
        _fill_uniform(bias, weight, generator)
    else:
        _zero_bias(bias)


def _init_timm(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    if not _is_patch_projection(name):
        _init_truncated(name, weight, bias, generator)
        return
    _fill_uniform(weight, weight, generator)
    if bias is not None:
        _fill_uniform(bias, weight, generator)


def _init_ijepa(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    _init_truncated(name, weight, bias, generator)
    if name.startswith("encoder.blocks.") and name.endswith(("attention.out", "mlp.fc2")):
        weight.div_((2 * (int(name.split(".")[2]) + 1)) ** 0.5)


def _init_torchvision(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    if _is_patch_projection(name) or name == "head.hidden":
        nn.init.trunc_normal_(weight, std=_fan_in(weight) ** -0.5, generator=generator)
    elif _is_head(name):
        weight.zero_()
    elif name.endswith(".out"):
        _fill_uniform(weight, weight, generator)
    else:
        nn.init.xavier_uniform_(weight, generator=generator)
    _init_mlp_bias(name, bias, generator)


INIT_SCHEMES: dict[str, InitScheme] = {
    "truncated": InitScheme(_init_truncated),
    "torch": InitScheme(_init_torch, table=1.0, cls=1.0, registers=1.0),
    "vitrail": InitScheme(_init_vitrail),
    "jax": InitScheme(_init_jax, cls=0.0, registers=1e-6),
    "mae": InitScheme(_init_mae),
    "dinov2": InitScheme(_init_timm, cls=1e-6, registers=1e-6),
    "timm": InitScheme(_init_timm, cls=1e-6, registers=1e-6),
    "ijepa": InitScheme(_init_ijepa),
    "torchvision": InitScheme(_init_torchvision, cls=0.0, registers=1e-6),
    "mimetic": InitScheme(_init_truncated),
}


def _is_patch_projection(name: str) -> bool:
    return name in ("tokens.patches", "tokens.patches.project")


def _is_head(name: str) -> bool:
    return name in ("head.linear", "head.distillation", "head.queries.classes")


def _fan_in(weight: Tensor) -> int:
    return weight[0].numel()


def _zero_bias(bias: Tensor | None) -> None:
    if bias is not None:
        bias.zero_()


def _init_mlp_bias(name: str, bias: Tensor | None, generator: Generator) -> None:
    """Nearly zero in the MLP, zero elsewhere."""
    if bias is not None and ".mlp." in name:
        bias.normal_(std=1e-6, generator=generator)
    else:
        _zero_bias(bias)


def _fill_uniform(tensor: Tensor, weight: Tensor, generator: Generator) -> None:
    """The initial values of torch's linear and convolution layers, for the weight and for its bias."""
    bound = _fan_in(weight) ** -0.5
    tensor.uniform_(-bound, bound, generator=generator)


# Mimetic initial values: attention that starts as in trained vision transformers, without training one.
#
# There the product of the query and key matrices of a head has a strong positive diagonal, so that tokens look at
# tokens like themselves, and the product of the value and output matrices a negative one. With x as a row, a fresh
# head looks by x W_Q W_K^T x^T, and the factors of
#
# W_Q W_K^T = 0.7 Z + 0.7 I for every head, W_V W_out = 0.4 Z - 0.4 I for all heads together,
#
# Z normal with variance 1/D, are taken from the singular values: the roots go to both sides, the largest to a head's
# few numbers. Learned positions start as waves over rows and columns, so that near patches are alike.
#
# Source: Trockman and Kolter 2023, "Mimetic Initialization of Self-Attention Layers", section 4.

QK_STRENGTH = 0.7
"""Weight of identity and noise in the product of queries and keys."""
VALUE_STRENGTH = 0.4
"""Weight of the negative identity and of noise in the product of values and outputs."""


@torch.no_grad()
def apply_mimetic_init(model: nn.Module, config: ViTConfig, generator: Generator) -> None:
    """Overwrite the attention matrices of every block, and a learned position table.

    Raises:
        UsageError: the heads together are wider than a token, or waves do not fit the width of a learned table.
    """
    if config.attention_width > config.width:
        raise UsageError(
            'init="mimetic" factors matrices of width x width and needs heads * head_width <= width. '
            f"Got heads={config.heads}, head_width={config.head_dim}, width={config.width}."
        )
    state = dict(model.named_parameters())
    for i in range(config.depth):
        attention = f"encoder.blocks.{i}.attention"
        _fill_attention(state[f"{attention}.qkv.weight"], state[f"{attention}.out.weight"], config, generator)
    if "positions.table" in state:
        if config.width % 4 or config.width < 8:
            raise UsageError(f'init="mimetic" needs a width of 8 or more, a multiple of 4. Got {config.width}.')
        waves = fixed_table("sincos2d-moco", config.grid, config.width, prefix_rows=config.table_prefix)
        state["positions.table"].copy_(waves)


def _fill_attention(qkv: Tensor, out: Tensor, config: ViTConfig, generator: Generator) -> None:
    queries, keys, values = qkv.view(3, config.heads, config.head_dim, config.width)  # 3 x [A, d, D]
    for query, key in zip(queries, keys, strict=True):
        left, right = _low_rank_factors(config.width, config.head_dim, QK_STRENGTH, QK_STRENGTH, generator)
        query.copy_(left.T)
        key.copy_(right)
    left, right = _low_rank_factors(config.width, config.attention_width, VALUE_STRENGTH, -VALUE_STRENGTH, generator)
    values.copy_(left.T.reshape(values.shape))
    out.copy_(right.T)


def _low_rank_factors(
    width: int, rank: int, noise: float, diagonal: float, generator: Generator
) -> tuple[Float[Tensor, "D r"], Float[Tensor, "r D"]]:
    """The best factors of that rank of noise * Z + diagonal * I."""
    product = noise * width**-0.5 * torch.randn(width, width, generator=generator) + diagonal * torch.eye(width)
    left, singular, right = torch.linalg.svd(product)
    roots = singular[:rank].sqrt()
    return left[:, :rank] * roots, roots[:, None] * right[:rank]
