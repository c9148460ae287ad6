"""What the comparisons with classes of other packages share: random numbers, their blocks, largest differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.checkpoints.identify import LAYOUTS
from vitrail.checkpoints.rules import write_with_layout
from vitrail.model.vit import ViT


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random numbers in every parameter, about 1 in norms and LayerScale, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.8 * parameter.shape[1:].numel() ** -0.5 if parameter.ndim in (2, 4) else 0.3
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
            is_norm = parameter.ndim == 1 and name.endswith("weight")
            if is_norm or "gamma" in name:
                parameter.add_(1.0)
    return model.eval()


def pictures(height: int, width: int, channels: int = 3, batch: int = 2) -> Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(height + width))


def answers(model: nn.Module, blocks: Sequence[nn.Module], images: Tensor) -> dict[str, Tensor]:
    """What every block and the whole model give, by our names."""
    found: dict[str, Tensor] = {}

    def keep(i: int) -> Any:
        return lambda module, inputs, output: found.__setitem__(f"blocks.{i}", output)

    hooks = [block.register_forward_hook(keep(i)) for i, block in enumerate(blocks)]
    found["outputs"] = model(images)
    for hook in hooks:
        hook.remove()
    return found


@torch.no_grad()
def furthest(ours: ViT, theirs: Mapping[str, Tensor], images: Tensor) -> float:
    """The largest difference over every block and whatever else the reference gave."""
    assert {f"blocks.{i}" for i in range(ours.config.depth)} <= set(theirs)
    found = ours.features(images, keep=tuple(theirs))
    for name, tensor in theirs.items():
        assert found[name].shape == tensor.shape and tensor.std() > 0.01, name
    return max((found[name] - tensor).abs().max().item() for name, tensor in theirs.items())


def furthest_gradient(ours: ViT, model: nn.Module, images: Tensor, layout: str, **beside: Any) -> float:
    """Of the sum of all squared outputs: on the pictures, and on every parameter that both have.

    Args:
        beside: fields of ViTConfig that a file of the layout does not say.
    """
    of_theirs, of_ours = images.clone().requires_grad_(), images.clone().requires_grad_()
    model(of_theirs).square().sum().backward()
    ours(of_ours).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    buffers = {name: torch.zeros_like(buffer) for name, buffer in ours.named_buffers()}
    renamed = write_with_layout({**gradients, **buffers}, ours.config, LAYOUTS[layout], beside)
    pairs = [(of_ours.grad, of_theirs.grad)]
    pairs += [(renamed[name], p.grad) for name, p in model.named_parameters() if name in renamed and p.numel()]
    assert len(pairs) > 10 and all(theirs is not None for _, theirs in pairs)
    scale = max(theirs.abs().max().item() for _, theirs in pairs)
    assert scale > 0.01
    return max((mine - theirs).abs().max().item() for mine, theirs in pairs) / max(1.0, scale)
