"""Every number of a plan and of a command that is out of range is one sentence, never an error that is not foreseen."""

from __future__ import annotations

import dataclasses

import pytest
from PIL import Image

import vitrail
from quick_fits import QUICK, SETTINGS, digits
from vitrail import config
from vitrail.argument_types import union_members
from vitrail.cli.arguments import flag_names, parse_command
from vitrail.cli.main import COMMANDS, main
from vitrail.config.schema import get_field_types
from vitrail.errors import DivergedError, UsageError
from vitrail.train.plan import Plan

NUMERIC = [field for field in config.describe(Plan) if "number" in field.type]
HUGE = ["1" + 40 * "0", "1e39", "nan", "inf", "-inf"]


@pytest.mark.parametrize("field", NUMERIC, ids=lambda field: field.name)
def test_a_number_of_a_plan_that_is_not_finite_or_too_large_is_refused(field):
    for value in HUGE:
        with pytest.raises(UsageError, match=r"must be |must hold |must list "):
            config.override(Plan(), {field.name: value})


@pytest.mark.wide
@pytest.mark.parametrize("field", NUMERIC, ids=lambda field: field.name)
def test_a_number_of_a_plan_is_taken_or_refused_in_words(field):
    for value in ("0", "-1", "-0.5", "1000000", "4611686018427387904", "1e-300"):
        try:
            config.override(Plan(), {field.name: value})
        except UsageError as error:
            assert str(error).endswith(".") or "list" in str(error)


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_flag_that_is_not_finite_or_too_large_is_refused(verb):
    command = COMMANDS[verb]
    kinds = get_field_types(command)
    needed = [
        "x"
        for name in command.POSITIONAL
        if command.__dataclass_fields__[name].default is dataclasses.MISSING
        and command.__dataclass_fields__[name].default_factory is dataclasses.MISSING
    ]
    for flag, name in flag_names(command).items():
        if {int, float} & set(union_members(kinds[name])):
            for value in HUGE:
                with pytest.raises(UsageError, match=rf"{flag}.* must be .*number"):
                    parse_command(command, [*needed, flag, value])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers") / "two"
    images, labels = digits(24, classes=2)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / str(label) / f"{index}.png")
    return folder


def train(source, out, **changes: object) -> int:
    settings = {"recipe.batch_size": 8, **SETTINGS, **changes}
    words = ["--seed", str(settings.pop("seed"))] if "seed" in settings else []
    words += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return main(["train", str(source), "--steps", "2", "--device", "cpu", "--out", str(out), *words])


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "value", "code", "words"),
    [
        ("seed", 2**64, 2, "--seed must be a whole number, below 2^63 in size. Got '18446744073709551616'."),
        ("model.depth", 0, 2, "model.depth must be at least 1 in a training. Got 0."),
        ("model.depth", 10**6, 2, "depth must be at most 256. Got 1,000,000."),
        ("model.mlp_width", 2**62, 2, "mlp_width must be at most 1,048,576."),
        ("model.norm_eps", -1, 2, "norm_eps must lie in 0..1. Got -1.0."),
        ("model.qk_scale", 0, 2, "qk_scale must be from 1e-6 to 1e6 in size. Got 0.0."),
        ("image.crop_fraction", 1e-300, 2, "crop_fraction must lie in 0.01..1. Got 1e-300."),
        ("image.std", "nan", 2, "image.std[0] must be a number, finite and at most 3.4e38 in size. Got nan."),
        ("image.mean", 1e18, 2, "mean must lie in -1e6..1e6."),
        ("recipe.crop_padding", 2**62, 2, "recipe.crop_padding must lie in 0..65536."),
        ("compute.threads", 1000, 2, "threads must be at most "),
        ("compute.num_workers", 100_000, 2, "num_workers must be at most 256 threads. Got 100000."),
        pytest.param("recipe.muon_lr", 1e30, 6, "answers are NaN or infinite", marks=pytest.mark.wide),
    ],
)
def test_a_training_with_a_number_out_of_range_ends_with_its_code_and_sentence(
    name, value, code, words, source, tmp_path, capsys
):
    assert train(source, tmp_path / "run", **{name: value}) == code
    said = capsys.readouterr().err
    assert words in said
    assert "Something went wrong" not in said


@pytest.mark.wide
@pytest.mark.parametrize("value", ["0", "-1", "1e-300"])
@pytest.mark.parametrize("field", NUMERIC, ids=lambda field: field.name)
def test_no_number_of_a_plan_ends_a_training_without_a_sentence(field, value, source, tmp_path, capsys):
    if field.name in ("minutes", "recipe.steps"):
        pytest.skip("the training has two steps")
    assert train(source, tmp_path / "run", **{field.name: value}) in (0, 2, 3, 5, 6)
    assert "Something went wrong" not in capsys.readouterr().err


@pytest.mark.wide
def test_python_functions_refuse_such_numbers_in_the_same_words(tmp_path):
    with pytest.raises(UsageError, match=r"seed must be a whole number, below 2\^63 in size"):
        vitrail.fit(digits(24, classes=2), out=tmp_path / "run", seed=2**64, quiet=True, **QUICK)
    with pytest.raises(UsageError, match=r"seed must be a whole number, below 2\^63 in size\. Got 184467"):
        vitrail.create("vit_pico_patch2_16", outputs=2, seed=2**64)
    with pytest.raises(UsageError, match=r"Outputs must be at most 10,000,000\. Got 1,000,000,000,000\."):
        vitrail.create("vit_pico_patch2_16", outputs=10**12)


@pytest.mark.wide
def test_a_training_whose_model_gives_no_finite_answers_has_diverged(tmp_path):
    settings = {**QUICK["settings"], "recipe.muon_lr": 1e18}
    with pytest.raises(DivergedError, match=r"answers are NaN or infinite.* Its weights are in .*model\.$"):
        vitrail.fit(digits(24, classes=2), out=tmp_path / "run", quiet=True, **{**QUICK, "settings": settings})
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
