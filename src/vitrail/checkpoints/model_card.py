"""The model card of a bundle (its README.md): architecture, use, classes, output scaling, training metadata."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.config import ViTConfig
from ..spec import ImageSpec

UNLABELED_KEY = "trained"
"""Key in a bundle's `info` for a model pre-trained without labels: the name of the phase."""
TASK_DESCRIPTIONS = {
    "classification": "one of {n} classes",
    "multilabel": "any of {n} labels, each with its own probability",
    "regression": "{n} measured number{s}",
    "anomaly": "a score of how unlike good images it is, and whether that is a defect",
    "segmentation": "one of {n} classes for every pixel",
}
PIPELINE_TAGS = {"classification": "image-classification", "multilabel": "image-classification"}
"""Pipeline tags of the Hub by task; every other task is image-feature-extraction."""


def describe_outputs(task: str, n: int) -> str:
    """What a model of a task answers with, in words; n is the number of its outputs."""
    return TASK_DESCRIPTIONS.get(task, "{n} number{s}").format(n=n, s="s" * (n != 1))


def format_model_card(
    config: ViTConfig,
    parameters: int,
    spec: ImageSpec,
    task: str,
    classes: tuple[str, ...],
    info: Mapping[str, object],
    evaluation: str = "",
) -> str:
    """The content of a bundle's README.md.

    Args:
        evaluation: metrics and plots, in Markdown; empty if nothing was measured.
    """
    grid = config.grid
    depth = ", read in 16 bits" if spec.bit_depth == 16 else ""
    answer = describe_outputs(task, config.outputs)
    title, use = f"that answers with {answer}", "vitrail predict PATH-OF-THIS-FOLDER picture.jpg"
    if UNLABELED_KEY in info:
        title = f"that has seen no label yet, to learn to answer with {answer}"
        train, embed = "vitrail train SOURCE --weights", "vitrail embed"
        use = f"{train} PATH-OF-THIS-FOLDER\n{embed} PATH-OF-THIS-FOLDER pictures/ --to features.npy"
    more_classes = f", and {len(classes) - 50} more in `config.json`" if len(classes) > 50 else ""
    names = ", ".join(f"`{name}`" for name in classes[:50]) + more_classes
    evaluation_section = f"\n## What it is worth\n\n{evaluation}\n" if evaluation else ""
    scalars = {name: value for name, value in info.items() if isinstance(value, str | int | float | bool)}
    training = "\n".join(f"- {name}: {value}" for name, value in scalars.items())  # nested values stay in config.json
    return f"""---
library_name: vitrail
pipeline_tag: {PIPELINE_TAGS.get(task, "image-feature-extraction")}
tags: [vision-transformer]
---

# A Vision Transformer {title}

| | |
|---|---|
| Parameters | {parameters:,} |
| Pictures | {spec.height} x {spec.width} pixels (height x width), channels: {spec.channels}, fit: {spec.fit} |
| Stored values | {spec.low:g} (black) to {spec.high:g} (white){depth} |
| Patches | {config.patch[0]} x {config.patch[1]} pixels, {grid.rows} rows of {grid.columns} |
| Blocks | {config.depth}, {config.width} wide, {config.heads} heads, MLP {config.mlp_width} |
| Positions | {config.positions}, rotary {config.rotary}{", relative biases" * config.relative_bias} |
| Pooling | {config.pool} |

## Use

```
{use}
```

```python
import vitrail
model = vitrail.load("PATH-OF-THIS-FOLDER")
outputs = model(model.preprocess(["picture.jpg"]))
```

`config.json` holds everything that a prediction needs, `manifest.json` the size and SHA-256 of every file.

## Answers

{names or "The outputs have no names."}
{_explain_outputs(task, classes, info)}{evaluation_section}
## From its training

{training or "Nothing was noted."}
"""


def _explain_outputs(task: str, classes: tuple[str, ...], info: Mapping[str, object]) -> str:
    """How to turn the network's outputs into predictions, for users of other software."""
    noted_decisions = info.get("decisions")
    decisions = noted_decisions if isinstance(noted_decisions, Mapping) else {}
    temperatures = list(decisions.get("temperature", ()))
    thresholds = list(decisions.get("thresholds", ()))
    if task == "classification":
        words = []
        if temperatures:
            words.append(f"The softmax is of the outputs divided by {temperatures[0]:.6g}, the temperature.")
        if thresholds and decisions.get("positive"):
            words.append(f"`{decisions['positive']}` is answered from a probability of {thresholds[0]:.6g} on.")
        return f"\n{' '.join(words)}\n" if words else ""
    if task == "multilabel":
        by = f" divided by its temperature ({_format_named_values(classes, temperatures)})" if temperatures else ""
        start = f"from its threshold on ({_format_named_values(classes, thresholds)})" if thresholds else "from 0.5 on"
        return f"\nEach has a probability of its own, the sigmoid of its output{by}, and is answered {start}.\n"
    scaling = info.get("scaling")
    if task != "regression" or not isinstance(scaling, Mapping) or not {"mean", "deviation"} <= scaling.keys():
        return ""
    pairs = zip(scaling["mean"], scaling["deviation"], strict=True)
    scale = (f"{deviation:.6g} x output + {mean:.6g}" for mean, deviation in pairs)
    return (
        "\nThe network's outputs are on the scale of the training targets; `vitrail predict` answers in their units. "
        f"In the order of the names: {', '.join(scale)}.\n"
    )


def _format_named_values(names: tuple[str, ...], values: list[float]) -> str:
    more = ", ..." if len(names) > 50 else ""
    return ", ".join(f"`{name}` {value:.6g}" for name, value in zip(names[:50], values[:50], strict=True)) + more
