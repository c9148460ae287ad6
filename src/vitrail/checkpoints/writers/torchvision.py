"""A state dict that torchvision's `VisionTransformer` loads: `model.load_state_dict(torch.load(FILE))`.

The file holds weights alone; what the outputs are called and how pictures are prepared stays behind.
"""

from __future__ import annotations

import io
from pathlib import Path

import torch

from ...errors import UsageError
from ...files import atomic, safetensors_file
from ...model.vit import ViT
from ...spec import ImageSpec
from ..families.torchvision import LAYOUTS
from ..rules import write as write_tensors

TODAY = LAYOUTS[0]
ENDINGS = (".pth", ".safetensors")


def write(path: Path, model: ViT, spec: ImageSpec, task: str, classes: tuple[str, ...]) -> None:
    """Write one file, whole or not at all: a state dict as `torch.save` has it, or by its ending safetensors.

    Args:
        spec, task, classes: torchvision's files have no place for them.

    Raises:
        UsageError: torchvision's class has no place for a part of the model (named), or the ending is another.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    if path.suffix not in ENDINGS:
        raise UsageError(f"A file for torchvision ends in {' or '.join(ENDINGS)}. Got {path}.")
    weights = write_tensors(model.state_dict(), model.config, TODAY)
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    if path.suffix == ".safetensors":
        safetensors_file.save_tensors(path, whole, {"format": "pt"}, checksum=True)
        return
    buffer = io.BytesIO()
    torch.save(whole, buffer)
    atomic.write_bytes(path, buffer.getvalue())
