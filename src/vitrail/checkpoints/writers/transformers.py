"""A folder that transformers opens: config.json, model.safetensors in the names of its files, preprocessor_config.json.

The architecture is the first of transformers' that holds the model: ViT, DeiT, I-JEPA, DINOv2, DINOv2 with registers,
SigLIP, CLIP, DINOv3. Features without a head are a ViTMSNModel, which is a ViTModel without its tanh layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch

from ...errors import UsageError
from ...files import atomic, safetensors_file
from ...model.config import ViTConfig
from ...model.positions import dinov3_periods
from ...model.vit import ViT
from ...spec import ImageSpec
from ..families import hf_clip, hf_dinov2, hf_dinov3, hf_siglip, hf_vit
from ..families.hf_express import Expressed, State, own_size
from ..folders import signed
from ..rules import write as write_names
from .transformers_config import described
from .transformers_pictures import processor
from .transformers_targets import TARGETS, Target, gated, misfits

LAYOUTS = {
    layout.variant: layout
    for layouts in (hf_vit.LAYOUTS, hf_dinov2.LAYOUTS, hf_dinov3.LAYOUTS, hf_siglip.LAYOUTS, hf_clip.LAYOUTS)
    for layout in layouts
}
"""The tables of transformers' names."""


def write(
    folder: Path,
    model: ViT,
    spec: ImageSpec,
    task: str,
    classes: tuple[str, ...],
    info: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write the folder whole or not at all.

    Args:
        info: licence and repository of the weights, where they are known, which config.json keeps.

    Raises:
        UsageError: transformers has no architecture for the model, or no processor for its pictures; the message names
            the part. Or the pictures or the names do not fit the model, or the folder exists.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    _check_fits(model, spec, classes)
    target, pictures = choose(model), processor(spec)
    config, state = own_size(model.config, model.state_dict())
    if config.patches == "linear":  # SigLIP's table would make it a NaFlex model
        config, state = _as_convolution(config, state)
    layout = LAYOUTS[target.variant + ("-gated" if gated(target, config) else "")]
    stated = {"norm_eps": config.norm_eps, "activation": config.activation, "head": config.head}
    names = write_names(state, config, layout, stated)
    content = {**described(target, config, task, classes), **signed(info)}
    with atomic.write_folder(Path(folder)) as inside:
        atomic.write_json(inside / "config.json", content)
        atomic.write_json(inside / "preprocessor_config.json", pictures)
        safetensors_file.save_tensors(inside / "model.safetensors", names, {"format": "pt"}, checksum=True)


def choose(model: ViT) -> Target:
    """The architecture of transformers that holds the model.

    Raises:
        UsageError: there is none; the parts that the nearest one lacks are named.
    """
    config, _ = own_size(model.config, {})
    faults = [(target, misfits(target, config)) for target in TARGETS]
    target, words = min(faults, key=lambda fault: len(fault[1]))
    if config.rotary == "dinov3" and not torch.equal(model.rotary.periods, dinov3_periods(config.head_numbers)):
        words = [*words, "rotary periods that are not 100^(4i/d)"]
    if words:
        raise UsageError(
            f"No architecture of transformers holds this model. The nearest, {target.architecture}, cannot express "
            f"{' nor '.join(words)}. Save the model as a bundle instead."
        )
    return target


def _check_fits(model: ViT, spec: ImageSpec, classes: tuple[str, ...]) -> None:
    config = model.config
    if (spec.size, spec.channels) != (config.image_size, config.channels):
        raise UsageError(
            f"The pictures must be what the model reads: {config.image_size} pixels and {config.channels} channels. "
            f"Got {spec.size} and {spec.channels}."
        )
    if classes and len(classes) != config.outputs:
        raise UsageError(f"Every one of the model's {config.outputs} outputs needs a name. Got {len(classes)} names.")


def _as_convolution(config: ViTConfig, state: State) -> Expressed:
    weight = state["tokens.patches.weight"].reshape(config.width, config.channels, *config.patch)
    return replace(config, patches="conv"), {**state, "tokens.patches.weight": weight}
