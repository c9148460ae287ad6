"""A slice of benchmarks/checkpoint_fuzz.py: no model of timm or transformers is read wrong or called damaged."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import timm

from scripts import script
from vitrail.checkpoints.other_architectures import explain_architecture

fuzz = script("checkpoint_fuzz")
REFUSED = ("refused", "refused")
READ = ("exact", "asked or assumed")
KINDS = {
    "vit_base_patch16_224": READ,
    "vit_base_patch16_clip_quickgelu_224": READ,
    "vit_base_patch32_siglip_256": READ,
    "deit3_small_patch16_224": READ,
    "vit_small_patch16_dinov3": READ,
    "hiera_tiny_224": REFUSED,
    "samvit_base_patch16": REFUSED,
    "xcit_nano_12_p16_224": REFUSED,
    "nest_tiny": REFUSED,
    "resnet18": REFUSED,
    "ViTForImageClassification": READ,
    "SwinModel": REFUSED,
    "GLPNModel": REFUSED,
}
WIDE = (
    "cait_xxs24_224",
    "coat_lite_tiny",
    "levit_128s",
    "davit_tiny",
    "maxvit_tiny_tf_224",
    "mvitv2_tiny",
    "pvt_v2_b0",
)
WIDE_TOO = ("convnext_atto", "efficientnet_b0", "vgg11", "HieraModel", "SegformerModel", "PvtModel", "VivitModel")


def outcomes(name: str, folder: Path, draw: random.Random | None = None) -> dict[str, str]:
    make = fuzz.make_transformers_sample if name[0].isupper() else fuzz.make_timm_sample
    sample = make(name, folder / "model") if draw is None else make(name, folder / "model", draw)
    found = fuzz.examine_forms(sample)
    assert not {each.kind for each in found.values()}.intersection(fuzz.FAULTS), (sample.changes, found)
    return {form: each.kind for form, each in found.items()}


@pytest.mark.parametrize("name", [*KINDS, *(pytest.param(name, marks=pytest.mark.wide) for name in (*WIDE, *WIDE_TOO))])
def test_a_model_is_read_exactly_or_refused_by_name(name: str, tmp_path: Path) -> None:
    folder, bare = KINDS.get(name, REFUSED)
    found = outcomes(name, tmp_path)
    assert found["folder"] == folder and found["bare"] in bare


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["vit_base_patch16_224", "vit_base_patch16_siglip_224", "vit_small_patch14_dinov2"])
def test_drawn_arguments_are_read_exactly_asked_for_noted_or_refused(name: str, seed: int, tmp_path: Path) -> None:
    outcomes(name, tmp_path, random.Random(seed))


def test_every_architecture_of_timm_is_plain_or_named_with_its_reason() -> None:
    plain = {*fuzz.PLAIN_MODULES, "vision_transformer_relpos"}
    unexplained = [
        name for name in timm.list_models() if fuzz.module_of(name) not in plain and not explain_architecture(name)
    ]
    mistaken = [name for name in timm.list_models() if fuzz.module_of(name) in plain and explain_architecture(name)]
    assert not unexplained and not mistaken


def test_outcomes_are_counted_and_sorted_by_what_was_said() -> None:
    row = {
        "library": "timm", "name": "a", "changes": {"depth": 2},
        "folder": {"kind": "exact", "words": ""}, "bare": {"kind": "refused", "words": "a is none"},
    }  # fmt: skip
    assert fuzz.count_outcomes([row]) == {"timm, folder": {"exact": 1}, "timm, bare": {"refused": 1}}
    assert fuzz.sort_outcomes([row]) == {"refused": {"is none": ["a, depth=2 (bare)"]}}


def test_reasons_are_counted_without_names_and_numbers() -> None:
    sentences = {
        "nest_tiny is no plain Vision Transformer: it attends within windows.": "it attends within windows",
        "It is no plain Vision Transformer that Vitrail reads: it has LoRA (a.b.0).": "it has LoRA",
        "file does not fit the layout timm: 2 missing: a. It is the same in every block: ...":
            "every block has another set of tensors than any layout",
        "config.json says gate=True, an argument of timm's that is not":
            "the argument gate of timm's makes another model",
        "A file does not say pool. Pass pool=; ...": "what the file does not say has no value here",
        "This model is unlike others.": "This model is unlike others.",
    }  # fmt: skip
    assert {sentence: fuzz.shorten_reason(sentence) for sentence in sentences} == sentences
    row = {"folder": {"kind": "exact", "words": ""}, "bare": {"kind": "refused", "words": next(iter(sentences))}}
    assert fuzz.count_reasons([row, row]) == {"it attends within windows": {"folder": 0, "bare": 2}}


def test_a_bare_file_that_is_refused_though_its_folder_is_read_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {False: fuzz.Outcome(kind="exact"), True: fuzz.Outcome(kind="refused", words="Pass rotary=")}
    monkeypatch.setattr(fuzz, "examine", lambda sample, bare: found[bare])
    assert fuzz.examine_forms(None)["bare"] == fuzz.Outcome(kind="unanswered", words="Pass rotary=")
    found[False] = fuzz.Outcome(kind="refused")
    assert fuzz.examine_forms(None)["bare"].kind == "refused"


def test_the_stored_fuzz_has_no_fault_and_its_table_on_the_page_is_fresh() -> None:
    layouts = script("table_of_layouts", "docs")
    before, now = (json.loads(path.read_text(encoding="utf-8")) for path in layouts.FUZZES)
    assert not {kind for counts in now["counts"].values() for kind in counts}.intersection(fuzz.FAULTS)
    assert layouts.fuzz(before, now) in layouts.PAGE.read_text(encoding="utf-8"), "run python docs/table_of_layouts.py"


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("A file does not say heads. Pass heads=; width 32", "heads"),
        ('Pass settings={"activation": "QuickGELU"} for those', "activation"),
        ("Pass pool=; ...", None),
        ("heads=4 contradicts the file. Leave heads= out.", None),
        ('pass settings={"rotary": ...}, which may be "none"', None),
    ],
)
def test_what_a_sentence_asks_for_is_answered_once(sentence: str, word: str | None) -> None:
    truth = {"heads": 4, "activation": "GELU", "pool": "class", "rotary": fuzz.UNLIKE}
    assert fuzz.read_question(sentence, truth, {"pool": "class"}) == word
