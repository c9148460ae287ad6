"""Compile kinds of model as one graph and print the largest difference. Run as a program of its own, because run-time
shape checks, which the tests switch on for everything they import, cannot be traced.

    python tests/compiled.py aot_eager                      # every kind, no compiler needed
    python tests/compiled.py inductor "dinov3" "sincos2d"   # these kinds, down to machine code
"""

from __future__ import annotations

import json
import sys

import torch

from kinds import KINDS, images_for
from vitrail.model.vit import create_model


def main() -> None:
    """Print {kind: [largest difference in evaluation, in gradients of training]} as JSON."""
    torch.set_num_threads(1)
    backend, *names = sys.argv[1:]
    print(json.dumps({name: differences(name, backend) for name in names or KINDS}))


def differences(name: str, backend: str) -> tuple[float, float]:
    """Plain against compiled, in outputs and in the gradients of one loss."""
    torch._dynamo.reset()  # kinds share code, and torch compiles one piece of code a few times only
    config = KINDS[name]
    plain, twin = create_model(config, seed=3), create_model(config, seed=3)
    compiled = torch.compile(twin, fullgraph=True, backend=backend)
    images = images_for(config)
    answers = [model(images) for model in (plain, compiled)]
    for answer in answers:
        answer.square().sum().backward()
    pairs = zip(plain.parameters(), twin.parameters(), strict=True)
    gradients = [(p.grad - q.grad).abs().max().item() for p, q in pairs if p.grad is not None]
    return (answers[0] - answers[1]).abs().max().item(), max(gradients)


if __name__ == "__main__":
    main()
