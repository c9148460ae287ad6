"""Steps: what is written in another form is read back to the digit, whichever form ours has."""

from __future__ import annotations

import pytest
import torch

from vitrail.checkpoints import layouts
from vitrail.checkpoints.layouts import StorageStep, invert_write, split_equally
from vitrail.model.config import ViTConfig

TINY = ViTConfig(image_size=(4, 6), patch=(2, 3), channels=2, width=8, depth=2, heads=2, mlp_width=12, outputs=3)
SHAPES = {  # step: (ours, theirs)
    "IDENTITY": ((8, 3), (8, 3)),
    "BATCHED": ((5, 8), (1, 5, 8)),
    "UNBATCHED": ((1, 1, 8), (1, 8)),
    "FLAT": ((1, 1, 8), (8,)),
    "KERNEL": ((8, 12), (8, 2, 2, 3)),
    "MATRIX": ((8, 2, 2, 3), (8, 12)),
    "MATRIX_CHANNELS_LAST": ((8, 12), (8, 12)),
    "CHANNELS_LAST_VECTOR": ((12,), (12,)),
    "TRANSPOSED": ((8, 3), (3, 8)),
    "GRID_TABLE": ((4, 8), (1, 2, 2, 8)),
}
STEPS: dict[str, StorageStep[torch.Tensor]] = {name: vars(layouts)[name] for name in SHAPES}


def back(step: StorageStep[torch.Tensor], theirs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return invert_write(step.write, theirs, like, TINY) if step.read is None else step.read(theirs, like)


@pytest.mark.parametrize("name", SHAPES)
def test_every_step_has_its_form_and_undoes_itself(name: str) -> None:
    ours = torch.randn(SHAPES[name][0])
    theirs = STEPS[name].write(ours, TINY)
    assert tuple(theirs.shape) == SHAPES[name][1]
    assert torch.equal(back(STEPS[name], theirs, ours), ours)


@pytest.mark.parametrize("shape", [(8, 12), (8, 2, 2, 3)])
def test_channels_last_means_that_neighbouring_numbers_are_channels_of_one_pixel(shape: tuple[int, ...]) -> None:
    kernel = torch.randn(8, 2, 2, 3)  # [D, channel, row, column]
    theirs = STEPS["MATRIX_CHANNELS_LAST"].write(kernel.reshape(shape), TINY)
    assert torch.equal(theirs[:, :2], kernel[:, :, 0, 0]) and torch.equal(theirs[:, 2:4], kernel[:, :, 0, 1])
    assert torch.equal(back(STEPS["MATRIX_CHANNELS_LAST"], theirs, kernel.reshape(shape)), kernel.reshape(shape))


def test_stacks_and_splits_undo_each_other() -> None:
    q, k, v = torch.randn(3, 4, 8)
    assert layouts.STACK.read is not None and layouts.SPLIT.read is not None
    (joint,) = layouts.STACK.read([q, k, v], [torch.empty(12, 8)])
    assert all(map(torch.equal, split_equally([joint], 3), (q, k, v)))
    first, rest = layouts.SPLIT.read([joint], [torch.empty(4, 8), torch.empty(8, 8)])
    assert torch.equal(first, q) and torch.equal(layouts.SPLIT.write([first, rest], TINY)[0], joint)
