"""Compile every kind of model as one graph and print the largest difference. Run as a program of its own, because
run-time shape checks, which the tests switch on for everything they import, cannot be traced."""

from __future__ import annotations

import json

import torch

from kinds import KINDS, images_for
from vitrail.model.vit import create


def main() -> None:
    """Print {kind: [largest difference in evaluation, in gradients of training]} as JSON."""
    torch.set_num_threads(1)
    print(json.dumps({name: differences(name) for name in KINDS}))


def differences(name: str) -> tuple[float, float]:
    """Plain against compiled, in outputs and in the gradients of one loss."""
    config = KINDS[name]
    plain, twin = create(config, seed=3), create(config, seed=3)
    compiled = torch.compile(twin, fullgraph=True)
    images = images_for(config)
    answers = [model(images) for model in (plain, compiled)]
    for answer in answers:
        answer.square().sum().backward()
    pairs = zip(plain.parameters(), twin.parameters(), strict=True)
    gradients = [(p.grad - q.grad).abs().max().item() for p, q in pairs if p.grad is not None]
    return (answers[0] - answers[1]).abs().max().item(), max(gradients)


if __name__ == "__main__":
    main()
