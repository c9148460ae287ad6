"""The model card of a bundle: what a person reads before using somebody else's weights."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.config import ViTConfig
from ..spec import ImageSpec

UNLABELED_KEY = "trained"
"""In a bundle's `info`, of a model that has learnt from images and seen no label: by which phase."""
TASK_DESCRIPTIONS = {
    "classes": "one of {n} classes",
    "labels": "any of {n} labels, each with its own probability",
    "number": "{n} measured numbers",
}
PIPELINE_TAGS = {
    "classes": "image-classification",
    "labels": "image-classification",
    "number": "image-feature-extraction",
}


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
        evaluation: figures and images, in Markdown; empty where nothing was measured.
    """
    grid = config.grid
    answer = TASK_DESCRIPTIONS.get(task, "{n} numbers").format(n=config.outputs)
    title, use = f"that answers with {answer}", "vitrail predict PATH-OF-THIS-FOLDER picture.jpg"
    if UNLABELED_KEY in info:
        title = f"that has seen no label yet, to learn to answer with {answer}"
        train, embed = "vitrail train SOURCE --weights", "vitrail embed"
        use = f"{train} PATH-OF-THIS-FOLDER\n{embed} PATH-OF-THIS-FOLDER pictures/ --to features.npy"
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
| Stored values | {spec.low:g} (black) to {spec.high:g} (white) |
| Patches | {config.patch[0]} x {config.patch[1]} pixels, {grid.rows} rows of {grid.columns} |
| Blocks | {config.depth}, {config.width} wide, {config.heads} heads, MLP {config.mlp_width} |
| Positions | {config.positions}, rotary {config.rotary} |
| Pooling | {config.pool} |

## Use

```
{use}
```

```python
import vitrail
model = vitrail.load("PATH-OF-THIS-FOLDER")
```

`config.json` holds everything that a prediction needs, `manifest.json` the size and SHA-256 of every file.

## Answers

{_list_classes(classes)}
{_explain_outputs(task, classes, info)}{_evaluation_section(evaluation)}
## From its training

{_list_training_info(info)}
"""


def _list_classes(classes: tuple[str, ...]) -> str:
    if not classes:
        return "The outputs have no names."
    more = f", and {len(classes) - 50} more in `config.json`" if len(classes) > 50 else ""
    return ", ".join(f"`{name}`" for name in classes[:50]) + more


def _explain_outputs(task: str, classes: tuple[str, ...], info: Mapping[str, object]) -> str:
    """What somebody who runs the network without us must know of its outputs."""
    decided = info.get("decisions")
    found = decided if isinstance(decided, Mapping) else {}
    heat = list(found.get("temperature", ()))
    cuts = list(found.get("thresholds", ()))
    if task == "classes":
        words = [f"The softmax is of the outputs divided by {heat[0]:.6g}, the temperature."] if heat else []
        if cuts and found.get("positive"):
            words.append(f"`{found['positive']}` is answered from a probability of {cuts[0]:.6g} on.")
        return f"\n{' '.join(words)}\n" if words else ""
    if task == "labels":
        by = f" divided by its temperature ({_format_named_values(classes, heat)})" if heat else ""
        start = f"from its threshold on ({_format_named_values(classes, cuts)})" if cuts else "from 0.5 on"
        return f"\nEach has a probability of its own, the sigmoid of its output{by}, and is answered {start}.\n"
    noted = info.get("scaling")
    if task != "number" or not isinstance(noted, Mapping) or not {"mean", "deviation"} <= noted.keys():
        return ""
    pairs = zip(noted["mean"], noted["deviation"], strict=True)
    scale = (f"{deviation:.6g} x output + {mean:.6g}" for mean, deviation in pairs)
    return (
        "\nThe network's outputs are on the scale of the training targets; `vitrail predict` answers in their units. "
        f"In the order of the names: {', '.join(scale)}.\n"
    )


def _evaluation_section(evaluation: str) -> str:
    return f"\n## What it is worth\n\n{evaluation}\n" if evaluation else ""


def _format_named_values(names: tuple[str, ...], values: list[float]) -> str:
    more = ", ..." if len(names) > 50 else ""
    return ", ".join(f"`{name}` {value:.6g}" for name, value in zip(names[:50], values[:50], strict=True)) + more


def _list_training_info(info: Mapping[str, object]) -> str:
    """Single values as a list; nested ones stay in config.json."""
    plain = {name: value for name, value in info.items() if isinstance(value, str | int | float | bool)}
    return "\n".join(f"- {name}: {value}" for name, value in plain.items()) or "Nothing was noted."
