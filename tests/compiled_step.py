"""Compile what a training step differentiates, from bytes to the loss, as one graph, and print the largest difference.

A program of its own, as tests/compiled.py, because run-time shape checks cannot be traced.

    python tests/compiled_step.py aot_eager            # graph breaks are errors; needs no compiler
    python tests/compiled_step.py inductor classes     # down to machine code
"""

from __future__ import annotations

import dataclasses
import json
import sys

import torch

from together import IMAGES, MODEL, PLAN
from vitrail.model.vit import create_model
from vitrail.train.distributed.data_parallel import ParallelModel
from vitrail.train.loop import StepInput, accumulate_gradients, make_forward_loss
from vitrail.train.losses import build_loss

B = 8
ROWS = torch.arange(16).expand(B, 16)[:, ::2].contiguous()
CLASSES = torch.arange(B) % 3
CELLS = torch.tensor([[0.0, 1.0, float("nan")]]).repeat(B, 1)
MIXED = torch.tensor([[0.25, 0.0, 0.75]]).repeat(B, 1)
CASES = {
    "classes": ("classification", None, CLASSES, {}),
    "mixed, half of the patches": ("classification", ROWS, MIXED, {"label_smoothing": 0.1}),
    "labels": ("multilabel", None, CELLS, {"max_pos_weight": 3.0}),
    "asymmetric": ("multilabel", ROWS, CELLS, {"asl_gamma_neg": 2.0, "asl_margin": 0.05}),
    "number": ("regression", None, CELLS, {"huber_delta": 1.0}),
    "number, in bfloat16": ("regression", ROWS, CELLS, {}),
}


def main() -> None:
    """Print {case: [difference of losses, largest difference of gradients]} as JSON."""
    torch.set_num_threads(1)
    backend, *names = sys.argv[1:]
    print(json.dumps({name: differences(name, backend) for name in names or CASES}))


def differences(name: str, backend: str) -> tuple[float, float]:
    """Plain against compiled; a break in the graph is an error."""
    torch._dynamo.reset()
    task, rows, targets, recipe = CASES[name]
    compute = dataclasses.replace(PLAN.compute, precision="bfloat16" if "bfloat16" in name else "float32")
    plan = dataclasses.replace(PLAN, recipe=dataclasses.replace(PLAN.recipe, **recipe), compute=compute)
    loss = build_loss(task, plan.recipe)
    losses, gradients = [], []
    for compiled in (False, True):
        model = create_model(MODEL, seed=3)
        engine = ParallelModel(model)
        measure = make_forward_loss(engine, loss, plan)
        if compiled:
            measure = torch.compile(measure, fullgraph=True, backend=backend)
        mean, _ = accumulate_gradients(engine, measure, loss, StepInput(IMAGES[:B], rows, targets), MODEL.output_shape)
        losses.append(mean.item())
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    furthest = max((p - q).abs().max().item() for p, q in zip(*gradients, strict=True))
    return abs(losses[0] - losses[1]), furthest


if __name__ == "__main__":
    main()
