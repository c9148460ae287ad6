"""Every published class of transformers, read from its folder and its file in both namings, to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitrail.checkpoints.identify import LAYOUTS
from vitrail.checkpoints.load import load_checkpoint
from vitrail.checkpoints.rules import write_with_layout

from .differences import record
from .hf import SIZES, images, largest_difference, randomised, saved
from .hf_cases import CASES

NAMINGS = {"names of files": False, "names in memory": True}


@pytest.mark.each_value
@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("name", CASES)
def test_every_block_and_output_is_the_references(name: str, naming: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = randomised(case.build())
    loaded = load_checkpoint(saved(reference, tmp_path / "there", NAMINGS[naming]))
    for size in case.sizes:
        pictures = images(SIZES[size])
        with torch.no_grad():
            theirs = case.run(reference, pictures)
        difference = largest_difference(loaded.model, theirs, pictures)
        record(f"transformers:{name}", f"read, {naming}, {size}", difference)
        assert difference < 1e-5, size


@pytest.mark.parametrize("name", CASES)
def test_gradients_on_every_parameter_are_the_references(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = randomised(case.build())
    loaded = load_checkpoint(saved(reference, tmp_path / "there", memory=True))
    pictures = images(SIZES["native grid"]).requires_grad_()
    theirs = case.run(reference, pictures)
    end = "outputs" if "outputs" in theirs else "tokens"
    (their_pictures,) = torch.autograd.grad(loss(theirs[end]), pictures, retain_graph=True)
    loss(theirs[end]).backward()
    pictures.grad = None
    loss(loaded.model.features(pictures, keep=(end,))[end]).backward()
    difference = (pictures.grad - their_pictures).abs().max().item() / max(1.0, their_pictures.abs().max().item())
    ours = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in loaded.model.named_parameters()}
    settings = {"norm_eps": loaded.config.norm_eps, "activation": loaded.config.activation}
    names = write_with_layout(ours, loaded.config, LAYOUTS[f"transformers:{case.memory}"], settings)
    compared = 0
    for n, parameter in reference.named_parameters():
        mine = names.get(n, names.get(n.removeprefix("vision_model.").removeprefix("vit.")))
        if parameter.grad is not None and mine is not None:
            scale = max(1.0, parameter.grad.abs().max().item())
            difference = max(difference, (mine - parameter.grad).abs().max().item() / scale)
            compared += 1
    record(f"transformers:{name}", "gradients", difference)
    assert difference < 1e-4 and compared > 20


def loss(x: torch.Tensor) -> torch.Tensor:
    """Weighs every number differently, so that none can hide behind another."""
    return (x * torch.linspace(-1, 1, x.numel()).reshape(x.shape)).sum()
