"""All initial values, in one place. The configuration names a scheme of model/schemes.py; norms, tokens, tables and
what is computed and not drawn are filled here."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from .config import ViTConfig
from .mimetic import mimic
from .positions import fixed_table
from .rotary import dinov3_periods
from .schemes import SCHEMES, Scheme
from .soft_split import fill_random_features


@torch.no_grad()
def initialise(model: nn.Module, config: ViTConfig, generator: Generator) -> None:
    """Give every parameter and buffer of a ViT its initial value, drawn from `generator` in a fixed order.

    Matrices come first, in the order of the modules, then what stands alone, then buffers: a new part that draws
    last changes nothing in the models that lack it.
    """
    scheme = SCHEMES[config.init]
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None:
            continue
        if weight.ndim == 1:
            _norm(module)
        else:
            scheme.layer(name, weight, module._parameters.get("bias"), generator)
    for name, parameter in model.named_parameters():
        _alone(name, parameter, config, scheme, generator)
    for name, buffer in model.named_buffers():
        _buffer(name, buffer, config, generator)
    if config.init == "mimetic":
        mimic(model, config, generator)


def _norm(module: nn.Module) -> None:
    for name, tensor in module.named_parameters(recurse=False):
        tensor.fill_(1.0 if name == "weight" else 0.0)


def _alone(name: str, parameter: Tensor, config: ViTConfig, scheme: Scheme, generator: Generator) -> None:
    """A parameter that belongs to no layer, by the last part of its name."""
    match name.rpartition(".")[2]:
        case "weight" | "bias":  # filled with its layer
            return
        case "cls":
            _normal(parameter, scheme.cls, generator)
        case "registers":
            _normal(parameter, scheme.registers, generator)
        case "table" | "distillation" | "key_rows" | "key_columns" | "value_rows" | "value_columns":
            _normal(parameter, scheme.table, generator)
        case "probe":
            _probe(parameter, config, generator)
        case "scale1" | "scale2":
            assert config.layer_scale is not None
            parameter.fill_(config.layer_scale)
        case "qv_bias":
            parameter.zero_()
        case _:
            raise AssertionError(f"{name} has no initial value.")


def _buffer(name: str, buffer: Tensor, config: ViTConfig, generator: Generator) -> None:
    match name.rpartition(".")[2]:
        case "table":
            buffer.copy_(fixed_table(config.positions, config.grid, config.width, config.table_prefix))
        case "periods":
            buffer.copy_(dinov3_periods(config.head_numbers))
        case "features":
            fill_random_features(buffer, generator)
        case _:
            raise AssertionError(f"{name} has no initial value.")


def _normal(parameter: Tensor, std: float, generator: Generator) -> None:
    if std == 0:
        parameter.zero_()
    else:
        nn.init.trunc_normal_(parameter, std=std, a=-100 * std, b=100 * std, generator=generator)


def _probe(parameter: Tensor, config: ViTConfig, generator: Generator) -> None:
    """Xavier-uniform as big_vision draws it, a matrix of one row; deviation D^-0.5 elsewhere, as in timm."""
    if config.init == "jax":
        bound = (6 / (1 + config.width)) ** 0.5
        parameter.uniform_(-bound, bound, generator=generator)
    else:
        _normal(parameter, config.width**-0.5, generator)
