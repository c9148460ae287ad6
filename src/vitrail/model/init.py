"""All initial values, in one place. Three schemes; the configuration names one.

`truncated`  matrices, position tables and the class token from a normal of deviation 0.02 (cut at +-2), biases 0:
             ViT in torch, DeiT, and the explained design.
`torch`      what torch's own layers start with (uniform within fan_in^-0.5), the joint qkv matrix Xavier-uniform with
             zero biases as in torch's multi-head attention; class token and positions normal(0, 1): the blog's, the
             CIFAR and the X-ray designs.
`vitrail`    ours for training from scratch: matrices normal with deviation fan_in^-0.5, and zeros in the last matrix
             of every branch and in the head, so that a fresh model passes its tokens through and answers evenly.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from .config import ViTConfig
from .positions import fixed_table


@torch.no_grad()
def initialise(model: nn.Module, config: ViTConfig, generator: Generator) -> None:
    """Give every parameter and fixed table of a ViT its initial value, drawn from `generator` in a fixed order."""
    fill_layer = {"truncated": _truncated_layer, "torch": _torch_layer, "vitrail": _vitrail_layer}[config.init]
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None:
            continue
        if weight.ndim == 1:
            _norm(module)
        else:
            fill_layer(name, weight, module._parameters.get("bias"), generator)
    _tokens_and_positions(model, config, 1.0 if config.init == "torch" else 0.02, generator)


def _norm(module: nn.Module) -> None:
    for name, tensor in module.named_parameters(recurse=False):
        tensor.fill_(1.0 if name == "weight" else 0.0)


def _tokens_and_positions(model: nn.Module, config: ViTConfig, std: float, generator: Generator) -> None:
    for _, parameter in _named(model, "tokens.cls", "positions.table"):
        nn.init.trunc_normal_(parameter, std=std, a=-100 * std, b=100 * std, generator=generator)
    for kind, buffer in ((config.positions, buffer) for buffer in model.buffers()):
        class_row = config.class_token and config.class_position
        buffer.copy_(fixed_table(kind, config.grid, config.width, class_row))


def _named(model: nn.Module, *names: str) -> list[tuple[str, Tensor]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if name in names]


def _truncated_layer(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    nn.init.trunc_normal_(weight, std=0.02, generator=generator)
    if bias is not None:
        bias.zero_()


def _torch_layer(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    bound = weight[0].numel() ** -0.5
    if name.endswith("attention.qkv"):
        nn.init.xavier_uniform_(weight, generator=generator)
    else:
        weight.uniform_(-bound, bound, generator=generator)
    if bias is not None and ".attention." in name:
        bias.zero_()
    elif bias is not None:
        bias.uniform_(-bound, bound, generator=generator)


def _vitrail_layer(name: str, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    if name.endswith(("attention.out", "mlp.fc2", "head.linear")):
        weight.zero_()
    else:
        weight.normal_(std=weight[0].numel() ** -0.5, generator=generator)
    if bias is not None:
        bias.zero_()
