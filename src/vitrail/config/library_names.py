"""Names that other libraries give to our settings: an error about an unknown name says what it is called here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class OurName(NamedTuple):
    """What a setting of another library is called here."""

    field: str
    """Field of the plan by its dotted name."""
    note: str = ""
    """How its values differ, if they do."""
    argument: str = ""
    """Flag and Python keyword of the same meaning, which is suggested first where there is one."""


_STEPS = OurName("recipe.steps", "optimiser steps; the argument epochs of a new training counts epochs", "epochs")
_BATCH = OurName("recipe.batch_size", "images per step of all processes together")
_WARMUP = OurName("recipe.warmup", "a fraction of the steps")
_PRECISION = OurName("compute.precision", '"float32", "bfloat16" or "float16"')
_SCHEDULE = OurName("recipe.lr_schedule", '"linear", "cosine" or "constant"')
_FLIP = OurName("recipe.flip", "true or false")
_WEIGHTS = OurName("finetune.weights", 'a file, a folder, hf:OWNER/NAME or "none"', "weights")
_DEVICE = OurName("compute.device", '"cuda", "cuda:1", "cpu" or "mps"', "device")
_FOLDS = OurName("data.folds", argument="folds")
_MINUTES = OurName("minutes", "minutes, not hours")
_TARGETS = OurName("data.targets", "columns of a manifest")
_POOL = OurName("model.pool", '"class", "mean", "class+mean", "mean-all" or "attention"')
_MLP_WIDTH = OurName("model.mlp_width", "a number of channels, such as 4 * width")
_DROPOUT = OurName("model.dropout", "of the embeddings")

# fmt: off
LIBRARY_NAMES: dict[str, OurName] = {
    # The model: timm, torchvision, transformers, vit-pytorch, DINOv2
    "img_size":                     OurName("model.image_size"),
    "imgsz":                        OurName("model.image_size"),
    "resolution":                   OurName("model.image_size"),
    "input_size":                   OurName("model.image_size"),
    "patch_size":                   OurName("model.patch"),
    "in_chans":                     OurName("model.channels"),
    "in_channels":                  OurName("model.channels"),
    "num_channels":                 OurName("model.channels"),
    "num_classes":                  OurName("model.outputs"),
    "num_labels":                   OurName("model.outputs"),
    "embed_dim":                    OurName("model.width"),
    "hidden_size":                  OurName("model.width"),
    "hidden_dim":                   OurName("model.width"),
    "dim":                          OurName("model.width"),
    "num_layers":                   OurName("model.depth"),
    "num_hidden_layers":            OurName("model.depth"),
    "num_heads":                    OurName("model.heads"),
    "num_attention_heads":          OurName("model.heads"),
    "dim_head":                     OurName("model.head_width"),
    "head_dim":                     OurName("model.head_width"),
    "mlp_ratio":                    _MLP_WIDTH,
    "mlp_dim":                      OurName("model.mlp_width"),
    "intermediate_size":            OurName("model.mlp_width"),
    "mlp_layer":                    OurName("model.mlp", '"plain", "gated" or "gated-packed"'),
    "ffn_layer":                    OurName("model.mlp", '"plain", "gated" or "gated-packed"'),
    "use_swiglu_ffn":               OurName("model.mlp", '"gated" or "gated-packed" for SwiGLU'),
    "act_layer":                    OurName("model.activation", "the name of torch's class"),
    "hidden_act":                   OurName("model.activation", "the name of torch's class"),
    "norm_layer":                   OurName("model.norm", '"LayerNorm" or "RMSNorm"'),
    "layer_norm_eps":               OurName("model.norm_eps"),
    "global_pool":                  _POOL,
    "pool_type":                    _POOL,
    "pos_embed":                    OurName("model.positions"),
    "reg_tokens":                   OurName("model.registers"),
    "num_registers":                OurName("model.registers"),
    "num_register_tokens":          OurName("model.registers"),
    "no_embed_class":               OurName("model.class_position", "true where no_embed_class is false"),
    "init_values":                  OurName("model.layer_scale"),
    "layerscale_value":             OurName("model.layer_scale"),
    "weight_init":                  OurName("model.init"),
    "fc_norm":                      OurName("model.pooled_norm"),
    "drop_rate":                    _DROPOUT,
    "dropout_rate":                 _DROPOUT,
    "pos_drop_rate":                OurName("model.dropout"),
    "emb_dropout":                  OurName("model.dropout"),
    "hidden_dropout_prob":          _DROPOUT,
    "proj_drop_rate":               OurName("model.mlp_dropout"),
    "attn_drop_rate":               OurName("model.attention_dropout"),
    "attention_probs_dropout_prob": OurName("model.attention_dropout"),
    "drop_path_rate":               OurName("model.drop_path"),
    "gradient_checkpointing":       OurName("model.grad_checkpointing"),
    # The training: torch, timm, transformers, ultralytics, lightly-train, Lightning, anomalib
    "epochs":                       _STEPS,
    "max_epochs":                   _STEPS,
    "num_epochs":                   _STEPS,
    "num_train_epochs":             _STEPS,
    "n_epochs":                     _STEPS,
    "max_steps":                    OurName("recipe.steps"),
    "max_iter":                     OurName("recipe.steps"),
    "time":                         _MINUTES,
    "time_limit":                   _MINUTES,
    "max_time":                     _MINUTES,
    "hours":                        _MINUTES,
    "batch":                        _BATCH,
    "bs":                           _BATCH,
    "train_batch_size":             _BATCH,
    "per_device_train_batch_size":  _BATCH,
    "accumulate_grad_batches":      OurName("recipe.grad_accum_steps"),
    "gradient_accumulation_steps":  OurName("recipe.grad_accum_steps"),
    "lr0":                          OurName("recipe.lr"),
    "learning_rate":                OurName("recipe.lr"),
    "learning_rate_init":           OurName("recipe.lr"),
    "max_lr":                       OurName("recipe.lr"),
    "opt":                          OurName("recipe.optimizer"),
    "optim":                        OurName("recipe.optimizer"),
    "momentum":                     OurName("recipe.muon_momentum"),
    "wd":                           OurName("recipe.weight_decay"),
    "sched":                        _SCHEDULE,
    "scheduler":                    _SCHEDULE,
    "lr_scheduler_type":            _SCHEDULE,
    "cos_lr":                       _SCHEDULE,
    "warmup_epochs":                _WARMUP,
    "warmup_steps":                 _WARMUP,
    "warmup_ratio":                 OurName("recipe.warmup"),
    "pct_start":                    OurName("recipe.warmup"),
    "clip_grad":                    OurName("recipe.grad_clip_norm"),
    "max_norm":                     OurName("recipe.grad_clip_norm"),
    "max_grad_norm":                OurName("recipe.grad_clip_norm"),
    "gradient_clip_val":            OurName("recipe.grad_clip_norm"),
    "smoothing":                    OurName("recipe.label_smoothing"),
    "label_smoothing_factor":       OurName("recipe.label_smoothing"),
    "class_weight":                 OurName("recipe.class_weights", '"none", "root" or "balanced"'),
    "pos_weight":                   OurName("recipe.max_pos_weight", "the largest weight of a positive"),
    "model_ema_decay":              OurName("recipe.ema_decay"),
    "ema":                          OurName("recipe.ema_decay", "a decay, such as 0.999"),
    "patch_drop_rate":              OurName("recipe.patch_keep_rate", "the fraction that is kept, 1 - patch_drop_rate"),
    "eval_steps":                   OurName("recipe.evaluate_every", "a number of steps"),
    "val_check_interval":           OurName("recipe.evaluate_every", "a number of steps"),
    "save_steps":                   OurName("recipe.save_every", "a number of steps"),
    "save_period":                  OurName("recipe.save_every", "a number of steps"),
    "random_state":                 OurName("seed"),
    "random_seed":                  OurName("seed"),
    "manual_seed":                  OurName("seed"),
    "logger":                       OurName("track.report_to"),
    # Augmentation: timm, ultralytics
    "aa":                           OurName("recipe.auto_augment", '"none", "rand", "trivial" or "three"'),
    "augment":                      OurName("recipe.auto_augment", '"none", "rand", "trivial" or "three"'),
    "aug_repeats":                  OurName("recipe.repeated_augmentation"),
    "repeated_aug":                 OurName("recipe.repeated_augmentation", "a number of repeats"),
    "reprob":                       OurName("recipe.random_erasing"),
    "erasing":                      OurName("recipe.random_erasing"),
    "hflip":                        _FLIP,
    "fliplr":                       _FLIP,
    "vflip":                        OurName("recipe.flip_vertical", "true or false"),
    "flipud":                       OurName("recipe.flip_vertical", "true or false"),
    "degrees":                      OurName("recipe.rotate"),
    "mixup_alpha":                  OurName("recipe.mixup"),
    "cutmix_alpha":                 OurName("recipe.cutmix"),
    # Weights, fine-tuning, masked autoencoding, distillation: timm, ultralytics, peft, MAE, DeiT
    "pretrained":                   _WEIGHTS,
    "checkpoint_path":              _WEIGHTS,
    "initial_checkpoint":           _WEIGHTS,
    "model_name_or_path":           _WEIGHTS,
    "freeze":                       OurName("finetune.freeze_blocks", "a number of blocks, from the first"),
    "layer_lr_decay":               OurName("finetune.layer_decay"),
    "r":                            OurName("finetune.lora_rank"),
    "decoder_embed_dim":            OurName("pretrain.decoder_width"),
    "teacher_model":                OurName("distill.teacher"),
    "distillation_alpha":           OurName("distill.alpha"),
    "distillation_tau":             OurName("distill.temperature"),
    # Data and machine: torch, scikit-learn, transformers, ultralytics, anomalib
    "val_split":                    OurName("data.val_fraction"),
    "val_split_ratio":              OurName("data.val_fraction"),
    "test_size":                    OurName("data.test_fraction"),
    "test_split_ratio":             OurName("data.test_fraction"),
    "n_splits":                     _FOLDS,
    "cv":                           _FOLDS,
    "n_folds":                      _FOLDS,
    "k_folds":                      _FOLDS,
    "kfold":                        _FOLDS,
    "label_column":                 _TARGETS,
    "target_column":                _TARGETS,
    "label_col":                    _TARGETS,
    "y_col":                        _TARGETS,
    "image_column":                 OurName("data.path", "a column of a manifest"),
    "x_col":                        OurName("data.path", "a column of a manifest"),
    "groups":                       OurName("data.group", "a column of a manifest", "group"),
    "group_column":                 OurName("data.group", "a column of a manifest", "group"),
    "crop_pct":                     OurName("image.crop_fraction"),
    "workers":                      OurName("compute.num_workers"),
    "dataloader_num_workers":       OurName("compute.num_workers"),
    "accelerator":                  _DEVICE,
    "gpu":                          _DEVICE,
    "gpus":                         _DEVICE,
    "cuda":                         _DEVICE,
    "cpu":                          _DEVICE,
    "num_threads":                  OurName("compute.threads"),
    "amp":                          _PRECISION,
    "bf16":                         _PRECISION,
    "fp16":                         _PRECISION,
    "half":                         _PRECISION,
    "dtype":                        _PRECISION,
    "mixed_precision":              _PRECISION,
    "torch_compile":                OurName("compute.compile"),
    "ddp_timeout":                  OurName("compute.timeout"),
}
# fmt: on


# fmt: off
ARGUMENT_NAMES: dict[str, tuple[str, ...]] = {
    # What goes in: torchvision, timm, transformers, ultralytics
    **dict.fromkeys(("data", "dataset", "data_dir", "data_path", "train_dir", "train_data", "root", "source", "input",
                     "image", "images", "pictures", "folder", "files", "path", "paths"), ("source", "paths")),
    **dict.fromkeys(("val_data", "val_dir", "validation_data", "valid"), ("val",)),
    **dict.fromkeys(("test_data", "test_dir"), ("test",)),
    **dict.fromkeys(("checkpoint", "ckpt", "model_path", "run"), ("weights", "model", "run_folder")),
    "weights": ("model", "run_folder"),
    **dict.fromkeys(("arch", "architecture", "model_name", "backbone"), ("model",)),
    **dict.fromkeys(("resume_from_checkpoint", "resume_from", "ckpt_path"), ("resume",)),
    **dict.fromkeys(("config", "cfg", "yaml"), ("plan",)),
    "size": ("image_size",),
    # What comes out
    **dict.fromkeys(("output", "output_file", "output_path", "save_path", "save", "o", "out"), ("to", "out")),
    **dict.fromkeys(("output_dir", "out_dir", "save_dir", "log_dir", "run_name", "name", "project"), ("out", "to")),
    "to": ("out",),
    "format": ("to",),
}
"""Word of other libraries -> our arguments of that meaning, of functions and commands; the first that exists."""
LIBRARY_VALUES: dict[str, tuple[str, ...]] = {
    "cls": ("class",), "token": ("class",), "avg": ("mean",), "gap": ("mean",),
    "gpu": ("cuda",), "fp32": ("float32",), "fp16": ("float16",), "half": ("float16",), "bf16": ("bfloat16",),
    "classify": ("classification",), "classes": ("classification",), "labels": ("multilabel",),
    "number": ("regression",), "numbers": ("regression",), "randaugment": ("rand",), "trivialaugment": ("trivial",),
    "swiglu": ("gated",), "hf": ("transformers",), "huggingface": ("transformers",), "torch": ("pt2",),
    "torchscript": ("pt2",), "pt": ("pt2",), "npz": ("google-npz",),
    "eval": ("test",), "valid": ("val",), "validation": ("val",), "training": ("train",),
}
"""Value of a setting in other libraries -> ours of that meaning."""
# fmt: on
MIN_SIMILARITY = 0.75
"""Smallest similarity of a misspelt name and ours, in 0..1; below it words are alike by chance, as batch and image."""


def explain_library_name(name: str, known: Mapping[str, str], in_plan: bool = False) -> str:
    """The sentence "It is called ... here." with a blank before it; empty if no library uses the name.

    Args:
        name: the unknown name, with its section if it has one, such as "recipe.lr0".
        known: names that exist instead, those of the plan with their sections -> how a message writes them.
        in_plan: name the plan's field even if it is not among the known names, which are those of one section.
    """
    section, _, word = name.rpartition(".")
    field, note, argument = LIBRARY_NAMES.get(word, OurName(""))
    last = field.rpartition(".")[2]
    choices = (argument, f"{section}.{last}", last, field, *(() if in_plan else ARGUMENT_NAMES.get(word, ())))
    ours = next((known[choice] for choice in choices if choice in known), field if in_plan else "")
    if not ours:
        return ""
    has_note = note and argument not in known
    return f" It is called {ours} here ({note})." if has_note else f" It is called {ours} here."


def suggest_name(word: str, known: Iterable[str]) -> str:
    """ " Did you mean ...?" with the known word of that meaning, else of that spelling; or an empty string."""
    names = list(known)
    meant = [ours for ours in LIBRARY_VALUES.get(word.lower(), ()) if ours in names]
    matches = meant or difflib.get_close_matches(word, names, n=1, cutoff=MIN_SIMILARITY)
    return f" Did you mean {matches[0]}?" if matches else ""
