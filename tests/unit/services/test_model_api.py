"""`vitrail.create`, `load` and `save`: a model with its preprocessing, from any training loop to a bundle and back."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitrail
from vitrail.checkpoints import bundle
from vitrail.config.library_names import LIBRARY_NAMES
from vitrail.errors import DamagedFileError, DataError, UsageError
from vitrail.files import safetensors_file
from vitrail.predict.predictor import Predictor
from vitrail.services import prediction
from vitrail.spec import ImageSpec

NAME = "vit_mu_patch8_16"
SPEC = ImageSpec(height=16, width=16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3), interpolation="bilinear", fit="crop")
CLASSES = ("cat", "dog", "owl")


def drawn(outputs: int = 3, **fields) -> vitrail.Model:
    """A model whose answers differ from image to image."""
    model = vitrail.create(NAME, outputs=outputs, init="torch", **fields)
    model.spec = dataclasses.replace(SPEC, channels=model.config.channels)
    return model


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return vitrail.save(drawn(), tmp_path / "kept", classes=CLASSES)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    levels = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


# -- create


def test_every_field_of_the_architecture_is_a_keyword():
    model = vitrail.create(NAME, depth=3, registers=2, drop_path=0.25, patch=4, image_size=(16, 8), layer_scale=1e-5)
    config = model.config
    assert (config.depth, config.registers, config.patch, config.image_size) == (3, 2, (4, 4), (16, 8))
    assert model.encoder.blocks[2].drop_path.rate == 0.25 and model(torch.zeros(1, 3, 16, 8)).shape == (1, 1000)
    assert vitrail.create("deit3_base_patch16_224", depth=1, layer_scale=None).config.layer_scale is None
    assert model.spec.size == (16, 8) and (model.classes, model.task, model.audit) == ((), "classification", None)


def test_a_narrower_model_has_a_narrower_mlp():
    assert vitrail.create(NAME, width=96, heads=3).config.mlp_width == 384
    assert vitrail.create(NAME, width=96, heads=3, mlp_width=100).config.mlp_width == 100


@pytest.mark.parametrize("word", sorted(w for w, ours in LIBRARY_NAMES.items() if ours.field.startswith("model.")))
def test_another_librarys_word_is_answered_with_the_field(word):
    field = LIBRARY_NAMES[word].field.removeprefix("model.")
    with pytest.raises(TypeError, match=rf"^create\(\) got an unexpected .* '{word}'\. It is called {field} here"):
        vitrail.create(NAME, **{word: 1})


def test_trained_weights_are_asked_of_load():
    with pytest.raises(TypeError, match=r"'pretrained'\. Trained weights are loaded by vitrail\.load, from a path or"):
        vitrail.create(NAME, pretrained=True)


def test_a_wrong_value_names_the_field_and_what_it_takes():
    with pytest.raises(UsageError, match=r"^vitrail\.create: depth must be a whole number\. Got 'six'"):
        vitrail.create(NAME, depth="six")
    with pytest.raises(UsageError, match=r"^Depth must be at most 256\. Got 257"):
        vitrail.create(NAME, depth=257)
    with pytest.raises(TypeError, match=r"'registrs'\. Did you mean registers\?"):
        vitrail.create(NAME, registrs=4)


# -- a model with its preprocessing


def test_a_loaded_model_says_what_it_reads_and_answers(kept):
    model = vitrail.load(kept)
    assert isinstance(model, vitrail.ViT) and not model.training
    assert (model.spec, model.classes, model.task, model.notes) == (SPEC, CLASSES, "classification", ())
    assert {row.action for row in model.audit.rows} == {"loaded"}
    assert model.state_dict().keys() == vitrail.ViT(model.config).state_dict().keys()


def test_images_of_every_kind_are_prepared_as_for_predictions(kept, picture):
    model, predictor = vitrail.load(kept), Predictor.open(kept)
    array = np.array(Image.open(picture))
    kinds = [str(picture), picture, picture.read_bytes(), array, torch.from_numpy(array).permute(2, 0, 1)]
    batch = model.preprocess([*kinds, Image.open(picture)])
    assert batch.shape == (6, 3, 16, 16) and batch.dtype == torch.float32
    assert all(torch.equal(image, batch[0]) for image in batch)
    for one in (*kinds, Image.open(picture)):
        assert torch.equal(model.preprocess(one), batch[:1])
    assert torch.equal(model.preprocess(np.stack([array, array])), batch[:2])
    with torch.inference_mode():
        own = model(batch[:1]).softmax(-1).numpy()
    assert np.abs(predictor.predict([picture]).probabilities - own).max() < 1e-6


def test_what_is_no_image_is_named(kept):
    model = vitrail.load(kept)
    with pytest.raises(DataError, match=r"absent\.png"):
        model.preprocess("absent.png")
    with pytest.raises(UsageError, match=r"preprocess takes a list of pictures\. Got an empty list"):
        model.preprocess([])


def test_a_summary_is_the_table_of_inspect():
    lines = drawn().summary().splitlines()
    assert lines[0] == "Model" and "  pictures    16 x 16 pixels (height x width), colour, crop" in lines
    assert "  encoder.blocks   [B, 5, 32]      12,704" in lines and "  head             [B, 3]              99" in lines


def test_copies_and_pickles_are_whole_models(kept):
    model, images = vitrail.load(kept), torch.randn(2, 3, 16, 16)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(stored, weights_only=False),
    ):
        assert torch.equal(other(images), model(images)) and other.spec == SPEC and other.classes == CLASSES
    other.train()(images).sum().backward()
    assert other.head.linear.weight.grad is not None


@pytest.mark.wide
def test_torch_exports_such_a_model(kept):
    model, images = vitrail.load(kept), torch.randn(2, 3, 16, 16)
    assert torch.equal(torch.export.export(model, (images,)).module()(images), model(images))


# -- save


def test_what_is_saved_comes_back_with_the_same_answers(kept):
    model, images = vitrail.load(kept), torch.randn(2, 3, 16, 16)
    assert torch.equal(model(images), drawn().eval()(images))
    assert bundle.read_bundle_info(kept).info == {}


def test_a_model_inside_a_wrapper_is_found_and_other_weights_are_not_lost(tmp_path):
    model = drawn()
    wrapped = nn.DataParallel(model)
    vitrail.save(wrapped, tmp_path / "wrapped")
    assert torch.equal(vitrail.load(tmp_path / "wrapped").head.linear.weight, model.head.linear.weight)
    with pytest.raises(UsageError, match=r"The Sequential has weights beside its Vitrail model, such as 1\.weight"):
        vitrail.save(nn.Sequential(model, nn.Linear(3, 2)), tmp_path / "none")
    with pytest.raises(UsageError, match=r"Got a Linear with none inside"):
        vitrail.save(nn.Linear(3, 2), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_outputs_without_names_are_called_by_their_numbers(tmp_path):
    assert vitrail.load(vitrail.save(drawn(), tmp_path / "kept")).classes == ("0", "1", "2")


def test_names_may_be_an_array(tmp_path):
    names = np.array(["ant", "bee", "cat"])
    assert vitrail.load(vitrail.save(drawn(), tmp_path / "kept", classes=names)).classes == ("ant", "bee", "cat")


def test_a_new_head_counts_and_a_foreign_one_is_refused(tmp_path):
    model = vitrail.load(vitrail.save(drawn(), tmp_path / "first", classes=CLASSES))
    model.head.linear = nn.Linear(32, 2)
    with pytest.raises(UsageError, match=r"classes must name each of the model's 2 outputs\. Got 3"):
        vitrail.save(model, tmp_path / "second")
    again = vitrail.load(vitrail.save(model, tmp_path / "second", classes=("old", "new")))
    assert again.config.outputs == 2 and torch.equal(again.head.linear.weight, model.head.linear.weight)
    model.head = nn.Linear(32, 2)
    with pytest.raises(UsageError, match=r"The head was replaced by a Linear.*head\.linear = torch\.nn\.Linear"):
        vitrail.save(model, tmp_path / "third", classes=("old", "new"))
    with pytest.raises(UsageError, match=r"The model does not fit the layout bundle: .*head\.weight \[2, 32\]"):
        vitrail.save(model.state_dict(), tmp_path / "third", classes=("old", "new"), config=model.config, spec=SPEC)


def test_thresholds_are_by_name(tmp_path, picture):
    labels = vitrail.save(drawn(), tmp_path / "labels", CLASSES, task="multilabel", thresholds={"dog": 0.0, "owl": 1.0})
    decisions = Predictor.open(labels).decisions
    assert (decisions.thresholds, decisions.chosen) == ((0.5, 0.0, 1.0), (False, True, True))
    assert Predictor.open(labels).predict([picture]).predicted[0, 1:].tolist() == [True, False]
    two = vitrail.save(drawn(2), tmp_path / "two", ("good", "bad"), thresholds={"bad": 0.0})
    assert Predictor.open(two).predict([picture]).predicted.tolist() == [1]
    for wrong, words in {
        "is of labels": (
            {"cat": 0.5},
            r"Thresholds are of labels, or of one of two classes\. Got 1 for classification",
        ),
        "has no such output": ({"cow": 0.5}, r"There is no output 'cow' for a threshold\. Known: cat, dog, owl"),
        "is no probability": ({"cat": 5}, r"A threshold is a probability from 0 to 1\. Got cat 5"),
    }.values():
        with pytest.raises(UsageError, match=words):
            vitrail.save(drawn(), tmp_path / "wrong", CLASSES, thresholds=wrong)
    with pytest.raises(UsageError, match=r"thresholds must be a dictionary of names and numbers\. Got 0\.5"):
        vitrail.save(drawn(), tmp_path / "wrong", CLASSES, thresholds=0.5)


def test_numbers_come_back_in_their_units(tmp_path, picture):
    model = drawn(2).eval()
    scaled = vitrail.save(model, tmp_path / "scaled", ("a", "b"), task="regression", scaling=([10, 20], [2, 0.5]))
    with torch.inference_mode():
        outputs = model(model.preprocess(picture)).numpy()
    values = Predictor.open(scaled).predict([picture]).values
    assert np.allclose(values, outputs * [2, 0.5] + [10, 20], atol=1e-5)
    again = vitrail.save(vitrail.load(scaled), tmp_path / "again")  # the scaling is what the outputs mean
    assert np.array_equal(Predictor.open(again).predict([picture]).values, values)
    plain = vitrail.save(model, tmp_path / "plain", task="regression")
    assert np.allclose(Predictor.open(plain).predict([picture]).values, outputs, atol=1e-6)
    with pytest.raises(UsageError, match=r"scaling must be the means and the positive deviations of 2 outputs"):
        vitrail.save(model, tmp_path / "wrong", task="regression", scaling=([1], [0]))
    with pytest.raises(UsageError, match=r'scaling is of task="regression"\. Got task="classification"'):
        vitrail.save(model, tmp_path / "wrong", scaling=([1, 1], [1, 1]))


def test_what_weights_cannot_say_is_asked_for(tmp_path):
    plain = vitrail.ViT(drawn().config)
    with pytest.raises(
        UsageError, match=r"save needs spec=, how images were prepared for the model: vitrail\.ImageSpec"
    ):
        vitrail.save(plain, tmp_path / "kept")
    with pytest.raises(UsageError, match=r"The pictures must be what the model reads: \(16, 16\) pixels"):
        vitrail.save(plain, tmp_path / "kept", spec=ImageSpec(height=32, width=32))
    with pytest.raises(UsageError, match=r"which does not say its architecture\. In Python pass config="):
        vitrail.save(plain.state_dict(), tmp_path / "kept", spec=SPEC)
    with pytest.raises(UsageError, match=r"save takes a Vitrail model or its state_dict\. .* none of the layouts"):
        vitrail.save({"blocks.0.norm1.weight": torch.ones(3)}, tmp_path / "kept", config=NAME, spec=SPEC)
    with pytest.raises(UsageError, match=r"config= describes a state_dict, and a model has its own"):
        vitrail.save(plain, tmp_path / "kept", config=NAME)
    with pytest.raises(UsageError, match=r"The task must be classification, .* or segmentation\. Got 'labels'"):
        vitrail.save(plain, tmp_path / "kept", spec=SPEC, task="labels")
    with pytest.raises(UsageError, match=r"classes must be a list of texts\. Got 'abc'\. Write it as a list\."):
        vitrail.save(plain, tmp_path / "kept", spec=SPEC, classes="abc")
    with pytest.raises(UsageError, match=r"classes must be texts, each once\. Got \['a', 'a', 'b'\]"):
        vitrail.save(plain, tmp_path / "kept", spec=SPEC, classes=["a", "a", "b"])
    with pytest.raises(UsageError, match=r"save writes a folder .* Leave \.pt out"):
        vitrail.save(plain, tmp_path / "kept.pt", spec=SPEC)
    plain.head.linear.weight.data[0, 0] = torch.nan
    with pytest.raises(UsageError, match=r"The model: every weight must be a finite number"):
        vitrail.save(plain, tmp_path / "kept", spec=SPEC)
    assert not (tmp_path / "kept").exists()


def test_nothing_is_overwritten(kept):
    with pytest.raises(UsageError, match=r"kept exists already and is not overwritten"):
        vitrail.save(drawn(), kept)


# -- weights that a program has saved


def write(path: Path, state: dict[str, object]) -> Path:
    if path.suffix == ".safetensors":
        safetensors_file.save_tensors(path, state, {})
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("ending", [".pt", ".pth", ".safetensors"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod.net."])
def test_a_state_dict_comes_back_with_its_config_or_a_name(tmp_path, prefix, ending):
    model, images = drawn(), torch.randn(2, 3, 16, 16)
    path = write(tmp_path / f"own{ending}", {prefix + name: tensor for name, tensor in model.state_dict().items()})
    for config, settings in ((model.config, None), (NAME, {"init": "torch"})):
        loaded = vitrail.load(path, config=config, settings=settings)
        assert torch.equal(loaded(images), model.eval()(images)) and loaded.config == model.config
        assert "how its pictures are prepared is not known: mean and deviation 0.5 are assumed" in loaded.notes
    kept = vitrail.save(torch.load(path) if ending != ".safetensors" else safetensors_file.load_tensors(path),
                        tmp_path / "kept", spec=SPEC, config=NAME)  # fmt: skip
    assert torch.equal(vitrail.load(kept)(images), model(images))


def test_a_checkpoint_of_a_loop_is_unwrapped(tmp_path):
    model = drawn()
    path = write(tmp_path / "loop.pt", {"epoch": 3, "model": model.state_dict(), "loss": 0.5})
    assert torch.equal(vitrail.load(path, config=model.config).head.linear.weight, model.head.linear.weight)


def test_soft_splits_are_recognised_too(tmp_path):
    model = vitrail.create("t2t_vit_7", depth=1, width=32, heads=2, mlp_width=32, image_size=32, outputs=2)
    path = write(tmp_path / "own.pt", model.state_dict())
    assert vitrail.load(path, config=model.config).config == model.config


def test_a_file_that_does_not_say_its_architecture_asks_in_one_sentence(tmp_path):
    path = write(tmp_path / "own.pt", drawn().state_dict())
    with pytest.raises(
        UsageError, match=r"own\.pt: It holds a state_dict of a Vitrail model, which does not say"
    ) as got:
        vitrail.load(path)
    assert str(got.value).count(str(path)) == 1
    with pytest.raises(DamagedFileError, match=r"^\S+own\.pt does not fit the layout bundle: .*missing"):
        vitrail.load(path, config=NAME, settings={"depth": 2})
    with pytest.raises(UsageError, match=r"There is no model named 'vit_mu'"):
        vitrail.load(path, config="vit_mu")


def test_the_weights_file_of_a_bundle_is_the_bundle(kept, picture):
    model = vitrail.load(kept / "model.safetensors")
    assert (model.spec, model.classes) == (SPEC, CLASSES)
    predictions = prediction.open_predictor(kept / "model.safetensors").predict([picture])
    assert np.array_equal(predictions.probabilities, Predictor.open(kept).predict([picture]).probabilities)
    with pytest.raises(UsageError, match=r"Leave config='vit_mu_patch8_16' out"):
        vitrail.load(kept, config=NAME)


def test_a_weights_file_without_its_bundle_says_its_architecture_and_no_decisions(kept, tmp_path):
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((kept / "model.safetensors").read_bytes())
    model = vitrail.load(alone)
    assert (model.config, model.spec, model.classes) == (vitrail.load(kept).config, SPEC, CLASSES)
    assert "read without the calibration, thresholds and units that its bundle may hold" in model.notes
    with pytest.raises(UsageError, match=r"The file says its own architecture\. Leave config= out"):
        vitrail.load(alone, config=NAME)
    with pytest.raises(UsageError, match=r"heads=3 contradicts the file: .*alone\.safetensors says 2"):
        vitrail.load(alone, heads=3)
    with pytest.raises(
        UsageError, match=r"Answers need the whole bundle, which holds thresholds, calibration and units"
    ):
        prediction.open_predictor(alone)


def test_config_is_for_our_own_names(tmp_path):
    timm_names = {"cls_token": torch.zeros(1, 1, 32), "patch_embed.proj.weight": torch.zeros(32, 3, 8, 8)}
    path = write(tmp_path / "theirs.pt", timm_names | {f"blocks.0.norm{i}.weight": torch.ones(32) for i in (1, 2)})
    with pytest.raises((UsageError, DamagedFileError)):
        vitrail.load(path, config=NAME)
