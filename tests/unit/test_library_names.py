"""Another library's name for a setting is refused with ours, in a plan, on the command line and in Python."""

from __future__ import annotations

import inspect

import pytest

import vitrail
from vitrail import config
from vitrail.api import fit
from vitrail.cli.arguments import flag_names, parse_command
from vitrail.cli.commands.evaluate import Evaluate
from vitrail.cli.commands.export import Export
from vitrail.cli.commands.inspect import Inspect
from vitrail.cli.commands.predict import Predict
from vitrail.cli.commands.train import Train
from vitrail.config.library_names import (
    ARGUMENT_NAMES,
    LIBRARY_NAMES,
    LIBRARY_VALUES,
    explain_library_name,
    suggest_name,
)
from vitrail.errors import UsageError
from vitrail.estimators import ViTClassifier
from vitrail.model.config import ViTConfig
from vitrail.train.plan import Plan

PLAN_FIELDS = [field.name for field in config.describe(Plan)]
MODEL_FIELDS = [field.name for field in config.describe(ViTConfig)]
ROWS = sorted(LIBRARY_NAMES)
FIT_KEYWORDS = list(inspect.signature(fit).parameters)


def section_of(word: str) -> str:
    return LIBRARY_NAMES[word].field.rpartition(".")[0]


@pytest.mark.parametrize("word", ROWS)
def test_every_row_names_a_field_that_exists_and_is_none_itself(word):
    assert LIBRARY_NAMES[word].field in PLAN_FIELDS
    assert f"{section_of(word)}.{word}".lstrip(".") not in PLAN_FIELDS
    assert LIBRARY_NAMES[word].argument in ("", *FIT_KEYWORDS)


@pytest.mark.parametrize("word", ROWS)
def test_a_plan_with_the_word_names_ours(word):
    field = LIBRARY_NAMES[word].field
    said = rf"^plan\.toml: there is no setting recipe\.{word}\. It is called {field} here"
    with pytest.raises(UsageError, match=said if section_of(word) != "pretrain" else "It is called"):
        config.read(Plan, {"recipe": {word: 1}}, "plan.toml")
    with pytest.raises(UsageError, match=rf"^plan\.toml: there is no setting {word}\. It is called {field} here"):
        config.read(Plan, {word: 1}, "plan.toml")


@pytest.mark.parametrize("word", ROWS)
def test_the_command_line_names_ours(word):
    dotted = f"{section_of(word)}.{word}" if section_of(word) else f"recipe.{word}"
    with pytest.raises(UsageError, match=rf"It is called {LIBRARY_NAMES[word].field} here"):
        config.override(Plan(), {dotted: "1"})
    if word in flag_names(Train).values():
        return
    with pytest.raises(UsageError, match=rf"^There is no flag --{word} here\. It is called --[a-z_.-]+ here") as caught:
        parse_command(Train, ["digits", f"--{word}", "1"])
    ours = str(caught.value).partition("called ")[2].partition(" here")[0]
    assert ours in flag_names(Train) or ours[2:] in PLAN_FIELDS


@pytest.mark.parametrize("word", ROWS)
def test_python_keywords_name_ours(word):
    if word not in FIT_KEYWORDS:
        with pytest.raises(TypeError, match=rf"^fit\(\) got an unexpected keyword argument '{word}'\. It is called "):
            fit("digits", **{word: 1})
    if word not in FIT_KEYWORDS and word not in inspect.signature(ViTClassifier).parameters:
        with pytest.raises(TypeError, match=rf"unexpected keyword argument '{word}'\. It is called "):
            ViTClassifier(**{word: 1})
    if section_of(word) == "model":
        ours = LIBRARY_NAMES[word].field.removeprefix("model.")
        said = rf"^ViTConfig\.__init__\(\) got an unexpected keyword argument '{word}'\. It is called {ours} here"
        with pytest.raises(TypeError, match=said):
            ViTConfig(**{word: 1})
        with pytest.raises(UsageError, match=rf"there is no setting {word}\. It is called {ours} here"):
            config.read_some(ViTConfig, {word: 1}, "settings")


def test_the_name_of_the_same_section_is_preferred():
    with pytest.raises(UsageError, match=r"no setting pretrain\.warmup_ratio\. It is called pretrain\.warmup here"):
        config.read(Plan, {"pretrain": {"warmup_ratio": 0.1}}, "plan.toml")


def test_our_own_name_without_its_section_names_the_section():
    with pytest.raises(UsageError, match=r"no setting weight_decay\. Did you mean recipe\.weight_decay\?"):
        config.read(Plan, {"weight_decay": 0.1}, "plan.toml")
    with pytest.raises(UsageError, match=r"no setting batch_size\. Did you mean recipe\.batch_size\?"):
        config.read(Plan, {"batch_size": 8}, "plan.toml")


def test_a_difference_of_values_is_said():
    with pytest.raises(UsageError) as caught:
        config.override(Plan(), {"recipe.epochs": "3"})
    assert str(caught.value) == (
        "the command line: there is no setting recipe.epochs. It is called recipe.steps here (optimiser steps; "
        "the argument epochs of a new training counts epochs)."
    )


def test_flags_are_named_as_flags():
    def refused(command, *line):
        with pytest.raises(UsageError) as caught:
            parse_command(command, list(line))
        return str(caught.value)

    assert refused(Train, "digits", "--imgsz", "64") == (
        "There is no flag --imgsz here. It is called --image-size here."
    )
    assert refused(Train, "digits", "--max-epochs", "3") == (
        "There is no flag --max-epochs here. It is called --epochs here."
    )
    assert refused(Train, "digits", "--lr0", "1") == "There is no flag --lr0 here. It is called --recipe.lr here."
    assert refused(Predict, "run", "--batch", "3").startswith("There is no flag --batch here. Its flags: --")
    assert refused(Inspect, "vit", "--num-heads", "3") == (
        "There is no flag --num-heads here. It is called --heads here."
    )


def test_python_functions_name_their_own_keywords_or_the_setting():
    with pytest.raises(
        TypeError, match=r"^create\(\) got an unexpected .* 'num_classes'\. It is called outputs here\.$"
    ):
        vitrail.create("vit_tiny_patch16_224", num_classes=3)
    with pytest.raises(TypeError, match=r'\'embed_dim\'\. It is called settings={"width": \.\.\.} here\.$'):
        vitrail.load("model.safetensors", embed_dim=3)
    with pytest.raises(TypeError, match=r'\'lr0\'\. It is called settings={"recipe.lr": \.\.\.} here\.$'):
        fit("digits", lr0=0.1)
    with pytest.raises(TypeError, match=r'\'batch_size\'\. Give it as settings={"recipe.batch_size": \.\.\.}\.$'):
        fit("digits", batch_size=8)
    with pytest.raises(TypeError, match=r"'minuets'\. Did you mean minutes\?$"):
        fit("digits", minuets=1)
    with pytest.raises(TypeError, match=r"^ViTConfig\.__init__\(\) got an unexpected keyword argument 'qqqq'\.$"):
        ViTConfig(qqqq=1)


def test_signatures_and_unknown_names_stay_as_they_are():
    assert list(inspect.signature(ViTConfig).parameters) == MODEL_FIELDS
    assert list(inspect.signature(fit).parameters)[:2] == ["source", "model"]
    assert explain_library_name("qqqq", {"recipe.lr": "recipe.lr"}, in_plan=True) == ""
    assert explain_library_name("lr0", {"width": "width"}) == ""


def refusal(command, *line):
    with pytest.raises(UsageError) as caught:
        parse_command(command, list(line))
    return str(caught.value).removeprefix(f"There is no flag {line[-2]} here. ")


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--batch-size", "Did you mean --recipe.batch_size?"),
        ("--pretrained", "It is called --weights here."),
        ("--lr", "Did you mean --recipe.lr?"),
        ("--gpu", "It is called --device here."),
        ("--output-dir", "It is called --out here."),
        ("--data", "It is called SOURCE here. It is given without a flag."),
        ("--source", "It is SOURCE, which is given without a flag."),
        ("--ckpt", "It is called --weights here."),
        ("--cfg", "It is called --plan here."),
        ("--arch", "It is called --model here."),
        ("--batch-sise", "Did you mean --recipe.batch_size?"),
        ("--patience", "Its flags: --val, --test"),
    ],
)
def test_a_flag_of_train_is_suggested_by_its_meaning_and_not_by_its_letters(flag, said):
    assert refusal(Train, "digits", flag, "3").startswith(said)


@pytest.mark.parametrize(
    ("command", "flag", "said"),
    [
        (Predict, "--out", "It is called --to here."),
        (Predict, "--model", "It is MODEL, which is given without a flag."),
        (Predict, "--checkpoint", "It is called MODEL here. It is given without a flag."),
        (Predict, "--images", "It is called PATHS here. It is given without a flag."),
        (Predict, "--half", "It is called --precision here"),
        (Export, "--format", "It is called --to here."),
        (Export, "--output", "It is called --to here."),
        (Evaluate, "--dataset", "It is called SOURCE here. It is given without a flag."),
    ],
)
def test_other_commands_too(command, flag, said):
    assert refusal(command, "run", flag, "3").startswith(said)


def test_python_suggests_arguments_by_their_meaning():
    for word, ours in (("gpu", "device"), ("pretrained", "weights"), ("output_dir", "out"), ("dataset", "source")):
        with pytest.raises(TypeError, match=rf"'{word}'\. It is called {ours} here\.$"):
            fit("digits", **{word: 1})
    with pytest.raises(TypeError, match=r"argument 'batch'\. It is called settings="):
        fit("digits", batch=1)


def test_a_word_of_an_argument_is_no_field_of_a_plan():
    with pytest.raises(UsageError, match=r"no setting weights\. (?!It is called)"):
        config.read(Plan, {"weights": "x"}, "plan.toml")


def test_values_are_suggested_by_their_meaning():
    assert suggest_name("cls", ["class", "mean"]) == " Did you mean class?"
    assert suggest_name("GPU", ["cpu", "cuda"]) == " Did you mean cuda?"
    assert suggest_name("hf", ["bundle", "transformers"]) == " Did you mean transformers?"
    assert suggest_name("muons", ["adamw", "muon"]) == " Did you mean muon?"
    assert suggest_name("gpu", ["group", "out"]) == suggest_name("batch_size", ["image_size"]) == ""


def test_no_table_names_a_word_that_is_ours_already():
    assert not set(ARGUMENT_NAMES) & set(LIBRARY_NAMES)
    assert all(word not in meant for word, meant in LIBRARY_VALUES.items())
    assert all(meant != (word,) for word, meant in ARGUMENT_NAMES.items())
