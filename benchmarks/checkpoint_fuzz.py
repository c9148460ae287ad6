"""What becomes of models of timm and transformers, in all kinds of configurations, as folders and as bare files?

    python benchmarks/checkpoint_fuzz.py                          # all of them: some minutes on one core
    python benchmarks/checkpoint_fuzz.py --library timm --names "vit_*rope*" --seed 1 --show

Of timm every plain ViT and some of each other kind, of transformers every class for pictures: tiny, with random numbers
in every parameter, many of them once more with arguments changed at random. What cannot be made tiny comes as names
and shapes. Each is opened as a folder with its config.json and as weights alone, and has one of these outcomes:

    exact      outputs within 1e-5 of the library's own
    asked      sentences named arguments, and with the right values of these the outputs are exact
    assumed    a note named the argument that was assumed otherwise, and with its right value they are exact
    unlike     a note named the argument that was assumed otherwise, and Vitrail has no such value
    refused    a sentence said what the model is, or what of it Vitrail lacks (exit 2)
    unanswered a bare file is asked about or refused, though its folder is read exactly
    damaged    called damaged, though it is not (exit 4)
    wrong      it loads, and answers otherwise without a word of the difference

The last three must not occur. Writes benchmarks/results/checkpoint-fuzz.json: the counts, and every refusal with its
reason.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from making.full_size import declare_torchvision
from making.records import RESULTS
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrail.checkpoints.foreign_folder import read_foreign_folder
from vitrail.checkpoints.load import LoadOptions, _load_content, load_checkpoint
from vitrail.checkpoints.weight_files import WeightsContent, read_folder_of_file
from vitrail.errors import DamagedFileError, UsageError, VitrailError

TOLERANCE = 1e-5
SMALL_MODEL = 3_000_000
"""Parameters of a model that is run; larger ones come as names and shapes."""
PLAIN_MODULES = ("vision_transformer", "deit", "eva", "beit", "naflexvit")
"""Modules of timm whose every architecture is tried."""
NEAR_MODULES = ("vision_transformer_hybrid", "vision_transformer_relpos", "vision_transformer_sam")
OF_EACH_OTHER = 2
"""Architectures of each other module of timm."""
TINY: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
CHANGES: dict[str, tuple[Any, ...]] = {
    "num_classes": (0, 3),
    "in_chans": (1, 2),
    "img_size": (24, (16, 24)),
    "patch_size": (8, (4, 8)),
    "num_heads": (2, 8),
    "mlp_ratio": (2, 3.5),
    "global_pool": ("token", "avg", "map"),
    "qkv_bias": (True, False),
    "proj_bias": (True, False),
    "qk_norm": (True,),
    "init_values": (None, 1e-5),
    "class_token": (True, False),
    "reg_tokens": (0, 2),
    "num_reg_tokens": (0, 2),
    "no_embed_class": (True, False),
    "pre_norm": (True, False),
    "final_norm": (True, False),
    "fc_norm": (True, False),
    "pool_include_prefix": (True,),
    "dynamic_img_pad": (True,),
    "pos_embed": ("learn", "none"),
    "act_layer": ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu"),
    "norm_layer": ("layernorm", "rmsnorm"),
    "scale_attn_norm": (True,),
    "scale_mlp_norm": (True,),
    "embed_norm_layer": ("layernorm",),
    "swiglu_mlp": (True, False),
    "scale_mlp": (True, False),
    "scale_attn_inner": (True, False),
    "attn_type": ("eva", "rope"),
    "use_abs_pos_emb": (True, False),
    "use_rot_pos_emb": (True, False),
    "use_post_norm": (True,),
    "use_pre_transformer_norm": (True,),
    "use_post_transformer_norm": (True, False),
    "use_fc_norm": (True, False),
    "attn_only_layer_scale": (True,),
    "rope_type": ("cat", "mixed", "dinov3"),
    "rope_temperature": (100.0, 10000.0),
    "rope_grid_offset": (0.5,),
    "rope_grid_indexing": ("ij", "xy"),
    "rope_rotate_half": (True, False),
    "use_rel_pos_bias": (True, False),
    "use_shared_rel_pos_bias": (True,),
    "attn_gated": (True,),
    "patchify_channels_last": (False,),
    "pos_embed_interp_mode": ("bilinear",),
}
"""Arguments of timm's classes and what they are changed to; those that an architecture does not take stay out."""
OUR_WORDS = {
    "GELU": "GELU",
    "GELUActivation": "GELU",
    "GELUTanh": "GELUTanh",
    "QuickGELU": "QuickGELU",
    "ReLU": "ReLU",
    "SiLU": "SiLU",
}
POOLS = {"token": "class", "avg": "mean", "map": "attention"}
OPTIONS = ("layout", "heads", "image_size", "channels", "network", "pool")
"""Arguments of their own; all others are fields of `settings`."""
TOGETHER = {"rotary": ("rotary_base", "rotary_grid")}
"""Arguments that are answered together."""
UNLIKE = "a value that Vitrail lacks"
FAULTS = ("unanswered", "damaged", "wrong")
"""Outcomes that must not occur."""
REASONS = (
    (r"is no plain Vision Transformer: (.*)\.$", r"\1"),
    (r"(?:reads: \S+|known here: it) has (.*?)(?: \([\w.]+\))?\.$", r"it has \1"),
    (r"every block has a tensor such as", "every block has a tensor that no layout has"),
    (r"It is the same in every block", "every block has another set of tensors than any layout"),
    (r"of its \d+ tensors", "hardly a tensor has a name of a layout"),
    (r"config\.json says (\w+)=.* an argument of timm's", r"the argument \1 of timm's makes another model"),
    (r"config\.json says that the model is an? ([\w-]+), which is not", r"\1 is not known here"),
    (r"turns queries and keys by angles", "it turns queries and keys by other angles"),
    (r"patches are normalised by \w+ with", "its patches have another norm than its blocks"),
    (r"MLP of its probe has GELU", "its probe has another activation than its blocks"),
    (r"pools by attention over the patches alone", "it pools by attention over the patches alone"),
    (r"stretches its positions by the longer side", "it stretches its positions by the longer side alone"),
    (r"adds positions again before every block", "it adds positions again before every block"),
    (r"reach over several pictures of a video|cuts videos into pieces", "it reads videos"),
    (r"holds \d+ networks|holds a model of the layout \w+ under", "it has other networks beside; `network=` reads one"),
    (r"This InternViT has RMSNorm on queries", "it has another norm on queries and keys than in its blocks"),
    (r"[Pp]ass \w+=|pass it:|settings=", "what the file does not say has no value here"),
)
"""Pattern of the sentence of a refusal, and its reason in short; the first that fits. Other sentences stay whole."""


@dataclass(kw_only=True)
class Sample:
    """A model of another library, saved."""

    library: str
    name: str
    folder: Path
    """config.json and, if there are numbers, model.safetensors."""
    tensors: Mapping[str, Tensor]
    """As the library names them; without numbers where the model is not tiny."""
    tiny: bool
    changes: dict[str, Any] = field(default_factory=dict)
    size: tuple[int, int, int] = (3, 16, 16)
    """Channels, height and width of its pictures."""
    truth: dict[str, Any] = field(default_factory=dict)
    """What a user who knows the model can answer, by our arguments."""
    run: Callable[[Tensor], list[Tensor]] | None = None
    """The outputs; several where the library gives several and ours may be any of them."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one of its two forms."""

    kind: str
    words: str = ""
    """The refusal, the difference, or what was asked or assumed."""


# -- Opening


def examine(sample: Sample, bare: bool) -> Outcome:
    """Open a sample, answer what is asked, and compare the outputs."""
    given: dict[str, Any] = {}
    while True:
        try:
            loaded = _open(sample, bare, given)
        except UsageError as error:
            if (word := read_question(str(error), sample.truth, given)) is None:
                return Outcome(kind="refused", words=_without_path(error, sample))
            given |= {each: sample.truth[each] for each in (word, *TOGETHER.get(word, ())) if each in sample.truth}
            continue
        except DamagedFileError as error:
            return Outcome(kind="damaged", words=_without_path(error, sample))
        except VitrailError as error:
            return Outcome(kind="wrong", words=f"{type(error).__name__}: {error}")
        break
    if not sample.tiny or sample.run is None:
        return Outcome(kind="wrong", words="it was read")
    difference = _difference(loaded.model, sample)
    if difference <= TOLERANCE:
        return Outcome(kind="asked" if given else "exact", words=", ".join(given))
    told = {
        word: value
        for word, value in sample.truth.items()
        if word not in given and any(re.search(rf"\b{word}\b", note) for note in loaded.notes)
    }
    if unlike := [word for word, value in told.items() if value == UNLIKE]:
        return Outcome(kind="unlike", words=", ".join(unlike))
    if told:
        try:
            again = _open(sample, bare, {**given, **told})
        except VitrailError as error:
            return Outcome(kind="wrong", words=f"{difference:.2g}; with {told}: {error}")
        if _difference(again.model, sample) <= TOLERANCE:
            return Outcome(kind="assumed", words=", ".join(told))
    return Outcome(kind="wrong", words=f"outputs differ by {difference:.2g}")


def examine_forms(sample: Sample) -> dict[str, Outcome]:
    """What became of a sample as a folder and as a bare file, by these two words."""
    found = {form: examine(sample, bare=form == "bare") for form in ("folder", "bare")}
    if found["folder"].kind == "exact" and found["bare"].kind == "refused":
        found["bare"] = Outcome(kind="unanswered", words=found["bare"].words)
    return found


def _open(sample: Sample, bare: bool, given: Mapping[str, Any]) -> Any:
    options = LoadOptions(
        **{word: value for word, value in given.items() if word in OPTIONS},
        settings={word: value for word, value in given.items() if word not in OPTIONS},
    )
    if not sample.tiny:
        folder = read_folder_of_file(Path("weights.pth")) if bare else read_foreign_folder(sample.folder)
        return _load_content(WeightsContent(tensors=dict(sample.tensors)), "weights.pth", options, folder)
    if not bare:
        return load_checkpoint(sample.folder, options)
    path = sample.folder.with_suffix(".safetensors")
    save_file({name: tensor.contiguous() for name, tensor in sample.tensors.items()}, path)
    return load_checkpoint(path, options)


def read_question(sentence: str, truth: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """The argument that a sentence asks for; None if it asks for none, or for one that is unknown or was given."""
    asked = [] if "Leave " in sentence else re.findall(r"\b(\w+)(?:=|\": )", sentence)
    by_name = sorted(asked, key=lambda word: word != "network")  # a name says more than any other word
    answerable = (word for word in by_name if truth.get(word, UNLIKE) != UNLIKE)
    return next((word for word in answerable if word not in given), None)


def _without_path(error: Exception, sample: Sample) -> str:
    return re.sub(rf"\S*({re.escape(sample.folder.name)}|weights\.pth)(\.safetensors)?:? ", "", str(error))


@torch.no_grad()
def _difference(model: nn.Module, sample: Sample) -> float:
    images = torch.randn(2, *sample.size, generator=torch.Generator().manual_seed(5))
    assert sample.run is not None
    ours = model(images)
    fitting = [theirs for theirs in sample.run(images) if theirs.shape == ours.shape]
    return min(
        ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1)).item()
        for theirs in fitting or [ours * torch.inf]
    )


def randomise(model: nn.Module) -> nn.Module:
    """Every parameter random, no activation near a constant, norms about 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.8 * parameter.shape[1:].numel() ** -0.5 if parameter.ndim in (2, 4) else 0.3
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
            if ("norm" in name and name.endswith("weight")) or "gamma" in name or "lambda" in name:
                parameter += 1
    return model.eval()


# -- timm


def list_timm_names(seed: int) -> list[str]:
    """The architectures that are tried: every plain one, and some of each other module."""
    import timm

    by_module: dict[str, list[str]] = defaultdict(list)
    for name in timm.list_models():
        by_module[module_of(name)].append(name)
    chosen = []
    for module, names in by_module.items():
        whole = module in (*PLAIN_MODULES, *NEAR_MODULES)
        chosen += names if whole else random.Random(f"{seed} {module}").sample(names, min(OF_EACH_OTHER, len(names)))
    return chosen


def module_of(name: str) -> str:
    """The module of timm that holds an architecture."""
    import timm

    return timm.models.model_entrypoint(name).__module__.rpartition(".")[2]


def make_timm_sample(name: str, folder: Path, draw: random.Random | None = None) -> Sample:
    """A model of timm: tiny if its function takes the sizes; with drawn arguments, or as its function has them."""
    import timm
    from timm.models import save_for_hf
    from timm.models._hub import save_config_for_hf

    wanted = {} if draw is None else {word: draw.choice(CHANGES[word]) for word in draw.sample(sorted(CHANGES), 12)}
    plain = module_of(name) in (*PLAIN_MODULES, *NEAR_MODULES)
    size = dict(TINY)
    if name.startswith("naflex"):
        size = {word: size[word] for word in size if word != "img_size"} | {"pos_embed_grid_size": (4, 4)}
    model, changes, tiny = None, dict[str, Any](), plain
    while plain and size and model is None:
        try:
            with torch.device("meta"):
                count = sum(p.numel() for p in timm.create_model(name, **size).parameters())
            if count > SMALL_MODEL:
                break
            model = timm.create_model(name, **size)
        except Exception as error:  # whatever an architecture says to a size
            size = _drop_argument(size, error)
    if model is None:
        tiny = False
        with torch.device("meta"):
            model = timm.create_model(name)
    elif wanted:
        for word, value in wanted.items():
            if len(changes) == 3:
                break
            try:
                tried = timm.create_model(name, **{**size, **changes, word: value})
                tried.eval()(torch.zeros(1, *_input_size(tried, {**size, **changes, word: value})))
            except Exception:  # the architecture does not take it
                continue
            model, changes = tried, {**changes, word: value}
    folder.mkdir()
    if not tiny:
        save_config_for_hf(model, str(folder / "config.json"))
        shapes = {key: torch.zeros(()).expand(tensor.shape) for key, tensor in model.state_dict().items()}
        return Sample(library="timm", name=name, folder=folder, tensors=shapes, tiny=False)
    model = randomise(model)
    save_for_hf(model, str(folder), safe_serialization=True)
    return Sample(
        library="timm", name=name, folder=folder, tensors=model.state_dict(), tiny=True, changes=changes,
        size=_input_size(model, {**size, **changes}), truth=_read_timm_truth(model, {**size, **changes}, changes),
        run=lambda images: [model(images)],
    )  # fmt: skip


def _drop_argument(size: Mapping[str, Any], error: Exception) -> dict[str, Any]:
    """The sizes without the one that an error names, else without the last."""
    named = next((word for word in size if word in str(error)), next(reversed(size)))
    return {word: value for word, value in size.items() if word != named}


def _input_size(model: nn.Module, arguments: Mapping[str, Any]) -> tuple[int, int, int]:
    side = arguments.get("img_size") or (
        16 if "pos_embed_grid_size" in arguments else model.pretrained_cfg["input_size"][-1]
    )
    height, width = side if isinstance(side, tuple) else (side, side)
    return int(arguments.get("in_chans", 3)), height, width


def _read_timm_truth(model: nn.Module, arguments: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """What timm's modules say of themselves."""
    block = next(iter(getattr(model, "blocks", ())), None)
    attention, mlp = (getattr(block, word, block) for word in ("attn", "mlp"))
    branches = len(getattr(block, "attns", (1,)))
    if branches > 1:  # side by side
        attention, mlp, block = block.attns[0].attn, block.ffns[0].mlp, block.attns[0]
    channels, *size = _input_size(model, arguments)
    pool, probe = POOLS.get(getattr(model, "global_pool", None)), getattr(model, "attn_pool", None)
    included = getattr(model, "pool_include_prefix", type(model).__name__ == "Eva")
    if probe is not None and getattr(model, "num_prefix_tokens", 0) and not included:
        pool = UNLIKE
    embeds = getattr(model, "embeds", model)
    norms = (getattr(block, word) for word in ("norm1", "in_norm", "norm") if hasattr(block, word))
    eps = getattr(next(norms, None), "eps", None)
    of_patches = getattr(getattr(embeds, "patch_embed", embeds), "norm", None)
    activation = OUR_WORDS.get(type(getattr(mlp, "act", getattr(block, "mlp_act", None))).__name__, UNLIKE)
    truth = {
        "network": None if changes or embeds is not model else model.pretrained_cfg["architecture"],  # no NaFlex name
        "post_norm": "Post" in type(block).__name__,
        "heads": branches * getattr(attention, "num_heads", 0) or None,
        "activation": UNLIKE if probe is not None and type(probe.mlp.act) is not type(mlp.act) else activation,
        "norm_eps": eps if getattr(of_patches, "eps", eps) == eps else UNLIKE,
        "pool": "mean-all" if pool == "mean" and getattr(model, "pool_include_prefix", False) else pool,
        "pool_heads": getattr(probe, "num_heads", None),
        "positions": "none" if getattr(embeds, "pos_embed", None) is None else "learned",
        "final_norm": not isinstance(getattr(model, "norm", None), nn.Identity | None),
        "image_size": tuple(size),
        "patch": tuple(getattr(embeds, "patch_size", getattr(getattr(model, "patch_embed", None), "patch_size", ()))),
        "channels": channels,
        "patchify_channels_last": None if getattr(embeds, "channels_last", True) else UNLIKE,
        **_read_rotary(getattr(model, "rope", None)),
    }
    return {word: value for word, value in truth.items() if value is not None}


def _read_rotary(rope: Any) -> dict[str, Any]:
    """timm's rotary positions as our arguments."""
    kind = type(rope).__name__
    if kind == "NoneType":
        return {"rotary": "none"}
    if kind not in ("RotaryEmbeddingCat", "RotaryEmbeddingDinoV3", "RotaryEmbeddingMixed"):
        return {"rotary": UNLIKE}
    plain = (rope.grid_indexing, float(getattr(rope, "grid_offset", 0)), bool(getattr(rope, "rotate_half", False)))
    if kind == "RotaryEmbeddingDinoV3":
        return {"rotary": "dinov3" if (*plain, rope.temperature) == ("ij", 0.0, True, 100.0) else UNLIKE}
    if kind == "RotaryEmbeddingMixed":
        return {"rotary": "mixed" if rope.grid_indexing == "xy" else UNLIKE}
    words = {("ij", 0.0, False): "eva02", ("xy", 0.0, False): "rope-vit", ("xy", 1.0, False): "pe"}
    reference = None if rope.ref_feat_shape is None else tuple(rope.ref_feat_shape)
    if plain == ("ij", 0.0, True) and rope.temperature == 100 and reference is None:
        return {"rotary": "axial"}
    if plain not in words:
        return {"rotary": UNLIKE}
    return {"rotary": words[plain], "rotary_base": float(rope.temperature), "rotary_grid": reference}


# -- transformers

SMALL: dict[str, Any] = {
    "hidden_size": 32, "embed_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 24, "patch_size": 4, "num_channels": 3, "projection_dim": 24, "num_patches": 36, "num_frames": 2,
    "tubelet_size": 2,
    "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 48, "layerscale_value": 0.5, "num_detection_tokens": 3, "mask_ratio": 0.0,
}  # fmt: skip
"""Fields of configurations, where they have them."""
CHANGED_FIELDS: dict[str, tuple[Any, ...]] = {
    "num_channels": (1,),
    "image_size": (32,),
    "patch_size": (8,),
    "num_hidden_layers": (3,),
    "num_attention_heads": (2, 8),
    "intermediate_size": (48,),
    "hidden_act": ("gelu", "quick_gelu", "relu", "silu", "gelu_pytorch_tanh"),
    "layer_norm_eps": (1e-3,),
    "rms_norm_eps": (1e-3,),
    "qkv_bias": (True, False),
    "attention_bias": (True, False),
    "query_bias": (True, False),
    "key_bias": (True, False),
    "value_bias": (True, False),
    "mlp_bias": (True, False),
    "use_swiglu_ffn": (True,),
    "use_gated_mlp": (True, False),
    "use_qk_norm": (True,),
    "norm_type": ("rms_norm",),
    "num_register_tokens": (0, 2),
    "layer_scale_init_value": (0.0, 0.1),
    "use_mean_pooling": (True, False),
    "use_absolute_position_embeddings": (True, False),
    "use_relative_position_bias": (True, False),
    "use_shared_relative_position_bias": (True,),
    "use_mask_token": (True,),
    "use_head": (True, False),
    "vision_use_head": (False,),
    "rope_theta": (50.0,),
    "pooler_output_size": (24,),
    "pooler_act": ("gelu",),
}
"""Fields of configurations and what they are changed to, in some samples."""
ACTIVATIONS = {
    "gelu": "GELU", "quick_gelu": "QuickGELU", "gelu_pytorch_tanh": "GELUTanh", "silu": "SiLU", "relu": "ReLU",
}  # fmt: skip


def list_transformers_classes() -> list[str]:
    """Classes for pictures: of bare models and of classifiers, and vision towers of models of images and texts."""
    from transformers.models.auto import modeling_auto as auto

    named = [*auto.MODEL_FOR_IMAGE_MAPPING_NAMES.values(), *auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.values()]
    towers = (
        *("CLIPVisionModel", "CLIPVisionModelWithProjection", "SiglipVisionModel", "Siglip2VisionModel", "ViTMAEModel"),
        *("ChineseCLIPVisionModel", "AltCLIPVisionModel", "MetaClip2VisionModel", "MetaClip2VisionModelWithProjection"),
        *("BlipVisionModel", "Blip2VisionModel", "InstructBlipVisionModel", "CLIPSegVisionModel", "XCLIPVisionModel"),
        *(
            "AlignVisionModel",
            "GroupViTVisionModel",
            "Kosmos2VisionModel",
            "Idefics3VisionTransformer",
            "SamVisionModel",
        ),
        *("OwlViTVisionModel", "InternVLVisionModel", "FlavaImageModel", "ViltModel", "PixtralVisionModel"),
    )
    flat = [one for each in named for one in ([each] if isinstance(each, str) else each)]
    return list(dict.fromkeys((*flat, *towers)))


def make_transformers_sample(name: str, folder: Path, draw: random.Random | None = None) -> Sample | None:
    """A model of transformers, with drawn fields of its configuration or its own; None if the class is not there, or
    needs what is not here, or with drawn fields if it is not tiny."""
    import transformers

    kind = getattr(transformers, name, None)
    if kind is None or kind.config_class is None or kind.config_class.__name__.startswith("Timm"):
        return None
    model, changes = _make_tiny_transformer(kind, {}), dict[str, Any]()
    if draw is not None and model is not None:
        for word in draw.sample(sorted(CHANGED_FIELDS), len(CHANGED_FIELDS)):
            tried = {**changes, word: draw.choice(CHANGED_FIELDS[word])}
            if len(changes) < 3 and hasattr(_inside(model.config), word):
                other = _make_tiny_transformer(kind, tried)
                model, changes = (model, changes) if other is None else (other, tried)
    if draw is not None and not changes:
        return None
    if model is None:
        with torch.device("meta"):
            try:
                model = kind(kind.config_class())
            except Exception:  # it needs more than a configuration
                return None
        folder.mkdir()
        model.config.save_pretrained(folder)
        shapes = {key: torch.zeros(()).expand(tensor.shape) for key, tensor in model.state_dict().items()}
        return Sample(library="transformers", name=name, folder=folder, tensors=shapes, tiny=False)
    model = randomise(model)
    model.save_pretrained(folder)
    inside = _inside(model.config)
    channels, *size = _picture_size(inside)
    gated = getattr(inside, "use_swiglu_ffn", False)  # which has SiLU, whatever the configuration says
    truth = {
        "layout": "transformers",
        "heads": getattr(inside, "num_attention_heads", None),
        "activation": "SiLU" if gated else ACTIVATIONS.get(str(getattr(inside, "hidden_act", None))),
        "norm_eps": getattr(inside, "layer_norm_eps", getattr(inside, "rms_norm_eps", None)),
        "image_size": tuple(size),
        "channels": channels,
        "head": "linear" if "Classification" in name else "tanh",
        "rotary": UNLIKE if name.startswith("DINOv3") and getattr(inside, "rope_theta", 100) != 100 else None,
    }
    return Sample(
        library="transformers", name=name, folder=folder, tensors=load_file(folder / "model.safetensors"), tiny=True,
        changes=changes, size=_picture_size(inside), run=lambda images: _run_transformers(model, images),
        truth={word: value for word, value in truth.items() if value is not None},
    )  # fmt: skip


def _inside(config: Any) -> Any:
    return getattr(config, "vision_config", config)


def _picture_size(inside: Any) -> tuple[int, int, int]:
    side, channels = getattr(inside, "image_size", 24), getattr(inside, "num_channels", 3)
    height, width = side if isinstance(side, list | tuple) else (side, side)
    return (channels, height, width) if isinstance(height, int) and isinstance(channels, int) else (3, 24, 24)


def _make_tiny_transformer(kind: Any, changes: Mapping[str, Any]) -> Any:
    """A model of a class with small sizes and changed fields; None if it does not run, or is not small."""
    config = kind.config_class()
    parts = [getattr(config, word) for word in ("vision_config", "text_config") if hasattr(config, word)]
    for inside in (config, *parts):
        for word, value in SMALL.items():
            now = getattr(inside, word, None)
            if isinstance(now, int | float) and not isinstance(now, bool):
                setattr(inside, word, value)
            elif word in ("image_size", "patch_size") and isinstance(now, list | tuple):
                setattr(inside, word, (value, value))
    config.num_labels = 5
    try:
        for word, value in changes.items():
            setattr(_inside(config), word, value)
        model = kind(config).eval()
        _run_transformers(model, torch.zeros(1, *_picture_size(_inside(config))))
    except Exception:  # whatever a class says to such sizes
        return None
    return model if sum(p.numel() for p in model.parameters()) < SMALL_MODEL else None


def _run_transformers(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Everything that a reader may mean by the outputs: logits, embeddings, a pooled token, class token, mean."""
    if type(model).__name__.startswith("Siglip2"):  # it takes patches
        side = _inside(model.config).patch_size
        patches = nn.functional.unfold(images, side, stride=side).transpose(1, 2)  # [B, N, channels * rows * columns]
        patches = patches.unflatten(2, (images.shape[1], side**2)).transpose(2, 3).flatten(2)
        given = model(
            pixel_values=patches,
            pixel_attention_mask=torch.ones(patches.shape[:2], dtype=torch.int64),
            spatial_shapes=torch.full((len(images), 2), images.shape[2] // side),
        )
    else:
        given = model(pixel_values=images)
    found = [given.get(word) for word in ("logits", "image_embeds", "pooler_output")]
    last = given.get("last_hidden_state")
    if last is not None and last.ndim == 3:
        registers = getattr(model.config, "num_register_tokens", 0)
        found += [
            last[:, 0],
            last.mean(1),
            last[:, 1:].mean(1),
            torch.cat([last[:, 0], last[:, 1 + registers :].mean(1)], 1),
        ]
    return [one for one in found if isinstance(one, Tensor)]


# -- All of them


def list_samples(options: argparse.Namespace) -> Iterator[tuple[str, str, Callable[[Path], Sample | None]]]:
    """Library, name and maker of every sample that the options ask for; a drawn one has `drawn` behind its name."""
    if options.library in (None, "timm"):
        for name in list_timm_names(options.seed):
            draw = random.Random(f"{options.seed} {name}")
            yield "timm", name, partial(make_timm_sample, name)
            if module_of(name) in PLAIN_MODULES and draw.random() < 0.5:
                yield "timm", f"{name} drawn", partial(make_timm_sample, name, draw=draw)
    if options.library in (None, "transformers"):
        for name in list_transformers_classes():
            draw = random.Random(f"{options.seed} {name}")
            yield "transformers", name, partial(make_transformers_sample, name)
            yield "transformers", f"{name} drawn", partial(make_transformers_sample, name, draw=draw)


def examine_row(sample: Sample, show: bool) -> dict[str, Any]:
    """The outcomes of a sample, by form; faults are printed, or with `show` all."""
    row: dict[str, Any] = {"library": sample.library, "name": sample.name, "changes": sample.changes}
    for form, found in examine_forms(sample).items():
        row[form] = {"kind": found.kind, "words": found.words}
        if show or found.kind in FAULTS:
            print(f"{sample.name} {sample.changes or ''} {form}: {found.kind} {found.words}", flush=True)
    return row


def count_outcomes(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The number of each outcome, by library and form."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for form in ("folder", "bare"):
            counts[f"{row['library']}, {form}"][row[form]["kind"]] += 1
    return {key: dict(sorted(found.items())) for key, found in counts.items()}


def count_reasons(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Reason of a refusal, without names and numbers -> how many folders and bare files it was given for."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for form in ("folder", "bare"):
            if row[form]["kind"] == "refused":
                found[shorten_reason(row[form]["words"])][form] += 1
    ordered = sorted(found.items(), key=lambda item: (-item[1].total(), item[0]))
    return {reason: {form: counts[form] for form in ("folder", "bare")} for reason, counts in ordered}


def shorten_reason(sentence: str) -> str:
    """The reason in the sentence of a refusal, alike for all models that are refused for it."""
    for pattern, reason in REASONS:
        if match := re.search(pattern, sentence):
            return match.expand(reason)
    return sentence


def sort_outcomes(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Kind of outcome -> what was said -> the samples, for all outcomes but exact ones."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for form in ("folder", "bare"):
            changes = "".join(f", {word}={value}" for word, value in row["changes"].items())
            words = row[form]["words"].removeprefix(row["name"]).strip()
            found[row[form]["kind"]][words].append(f"{row['name']}{changes} ({form})")
    found.pop("exact", None)
    return {kind: dict(sorted(found[kind].items())) for kind in sorted(found)}


def main() -> None:
    """Examine all samples and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=("timm", "transformers"))
    parser.add_argument("--names", default="*", help="a pattern of names")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print every sample and write nothing")
    parser.add_argument("--rows", type=Path, help="keep a line for each sample here, and leave out those it has")
    parser.add_argument("--out", type=Path, default=RESULTS / "checkpoint-fuzz.json")
    options = parser.parse_args()
    declare_torchvision()
    logging.disable(logging.WARNING)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kept: dict[str, dict[str, Any] | None] = {}
    if options.rows is not None and options.rows.is_file():
        kept = dict(map(json.loads, options.rows.read_text(encoding="utf-8").splitlines()))
    with tempfile.TemporaryDirectory() as here:
        for number, (library, name, make) in enumerate(list_samples(options)):
            key = f"{library} {name}"
            if key in kept or not fnmatchcase(name.removesuffix(" drawn"), options.names):
                continue
            sample = make(Path(here) / f"sample-{number}")
            kept[key] = None if sample is None else examine_row(sample, options.show)
            if options.rows is not None:
                with options.rows.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps([key, kept[key]]) + "\n")
    rows = [row for row in kept.values() if row is not None]
    counts = count_outcomes(rows)
    for key, found in counts.items():
        print(f"{key}: {', '.join(f'{count} {kind}' for kind, count in found.items())}")
    if not options.show:
        facts = {"seed": options.seed, **{name: version(name) for name in ("timm", "transformers")}, "counts": counts}
        facts["reasons"] = count_reasons(rows)
        options.out.write_text(json.dumps({**facts, **sort_outcomes(rows)}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
