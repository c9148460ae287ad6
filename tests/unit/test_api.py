from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.checkpoints import bundle_weights
from vitrail.data.source import Source
from vitrail.errors import DamagedFileError, DataError, UsageError
from vitrail.services.prediction import parse_images
from vitrail.spec import ImageSpec


def test_the_public_names_are_these():
    estimators = ["ViTAnomaly", "ViTClassifier", "ViTMultiLabel", "ViTRegressor", "ViTSegmenter"]
    results = ["ClassificationPredictions", "MultilabelPredictions", "RegressionPredictions"]
    models = ["ImageSpec", "Model", "ViT", "ViTConfig", "create", "load", "save"]
    events = ["FinishEvent", "Note", "PlanEvent", "RunFolderEvent", "StageEvent", "StepProgress", "StopEvent"]
    events += ["TaskProgress", "TrainingEvent", "ValidationEvent"]
    runs = ["Run", "TuneResult", "fit", "open", "train", "tune"]
    assert set(vitrail.__all__) == {*results, *estimators, *models, *events, *runs, "__version__"}
    assert all(callable(getattr(vitrail, name)) for name in vitrail.__all__ if name != "__version__")
    assert dir(vitrail) == vitrail.__all__


def test_the_version_is_that_of_the_package_also_where_it_is_not_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert vitrail.__version__ == project["version"]
    package = Path(vitrail.__file__).parent
    assert not [path for path in package.rglob("*.py") if 'version("vitrail")' in path.read_text().replace("'", '"')]


def test_another_name_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"vitrail has no 'trian'\. It has Class.*, Run, .* create"):
        vitrail.trian  # noqa: B018


def test_importing_the_package_imports_neither_torch_nor_numpy_nor_scikit_learn():
    script = "import sys, vitrail; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_named_model_takes_outputs_channels_and_a_rectangle():
    model = vitrail.create("vit_pico_patch2_8", outputs=3, channels=2, image_size=(8, 12))
    assert model(torch.zeros(1, 2, 8, 12)).shape == (1, 3)
    assert vitrail.create("vit_pico_patch2_8", image_size=10).config.image_size == (10, 10)


def test_equal_seeds_give_equal_models():
    first, second, other = (vitrail.create("vit_mu_patch8_16", seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_size_that_the_patch_does_not_divide_is_refused():
    with pytest.raises(UsageError, match=r"The image height 30 is not a multiple of the patch height 8"):
        vitrail.create("vit_mu_patch8_16", image_size=(30, 32))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    model = vitrail.create("vit_mu_patch8_16", outputs=2)
    bundle_weights.save_bundle(
        tmp_path / "kept", model, ImageSpec(height=16, width=16), "classification", ("cat", "dog"), {}
    )
    return tmp_path / "kept"


def test_a_bundle_comes_back_as_it_was_saved(kept):
    model = vitrail.load(kept)
    assert not model.training
    assert torch.equal(model.head.linear.weight, vitrail.create("vit_mu_patch8_16", outputs=2).head.linear.weight)


def test_other_outputs_put_a_fresh_head_on_a_model(kept):
    model = vitrail.load(kept, outputs=5)
    assert model(torch.zeros(1, 3, 16, 16)).tolist() == [[0.0] * 5]


def test_an_argument_that_contradicts_the_file_is_refused(kept):
    with pytest.raises(UsageError, match=r"heads=3 contradicts the file: .* says 2"):
        vitrail.load(kept, heads=3)


def test_loading_nothing_says_what_can_be_loaded(tmp_path):
    with pytest.raises(UsageError, match=r"There is nothing at .*absent\. Give a run folder, a bundle, a weights file"):
        vitrail.load(tmp_path / "absent")


def test_loading_a_damaged_bundle_is_refused(kept):
    (kept / "model.safetensors").write_bytes(b"")
    with pytest.raises(DamagedFileError, match="has 0 bytes, expected"):
        vitrail.load(kept)


def test_opening_what_is_neither_run_nor_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"^There is nothing at .*absent\. Give the folder that train named\."):
        vitrail.open(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"is not a run folder: it has no plan\.toml.* are read by vitrail\.load\."):
        vitrail.open(tmp_path)


def test_a_saved_model_is_opened_and_predicts_but_has_no_plan(kept):
    opened, picture = vitrail.open(kept), np.zeros((20, 30, 3), np.uint8)
    found = opened.predict([picture], task="classification")
    expected = vitrail.load(kept)
    assert found.labels[0] in expected.classes == ("cat", "dog")
    assert np.allclose(found.probabilities, expected(expected.preprocess(picture)).softmax(-1).detach().numpy())
    assert opened.embed([picture]).vectors.shape == (1, 32)
    for ask in (lambda: opened.plan, opened.evaluate, opened.resume, lambda: opened.report):
        with pytest.raises(UsageError, match=r"kept is a model alone(: it has no plan and no im|, without a rep)"):
            ask()


def test_fitting_refuses_a_setting_that_does_not_exist():
    with pytest.raises(UsageError, match=r"there is no setting recipe\.batch_sise\. Did you mean recipe\.batch_size\?"):
        vitrail.fit("digits", settings={"recipe.batch_sise": 3})


def test_an_object_is_fitted_and_measured_by_the_program_that_has_it(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(20) % 2
    source = Source(
        name="drawn", classes=("a", "b"), images=noise, targets=labels, ids=tuple(f"{row}" for row in range(20))
    )
    settings = {"compute.threads": 2, "recipe.batch_size": 8}
    run = vitrail.fit(
        source, "vit_mu_patch8_16", steps=2, out=tmp_path / "run", device="cpu", settings=settings, quiet=True
    )
    assert run.plan.data.source == "memory"
    assert run.evaluate().n == 4
    with pytest.warns(UserWarning, match=r"were fitted to 2 of these 2 pictures"):
        assert run.evaluate(split="val").n == 2
    with pytest.warns(UserWarning, match=r"has learnt from 14 of these 20 pictures with their answers"):
        assert run.evaluate(source).n == 20
    named = run.predict(noise[:3], task="classification")
    assert named.labels == tuple("ab"[k] for k in named.indices) and named.labels == run.predict(noise[:3]).labels
    with pytest.raises(UsageError, match=r"run predicts task='classification'\. Got task='regression'\."):
        run.predict(noise[:3], task="regression")
    assert run.resume(quiet=True).path == run.path
    other = vitrail.open(run.path)
    with pytest.raises(UsageError, match=r"objects that a Python program held in memory"):
        other.evaluate()
    with pytest.warns(UserWarning, match=r"has learnt from 14 of these 20 pictures"):
        assert other.evaluate(source, split="all").n == 20


def test_a_run_that_knows_its_pictures_takes_no_others(tmp_path):
    (tmp_path / "plan.toml").write_text('[data]\nsource = "digits"\n')
    with pytest.raises(UsageError, match=r"reads digits again; no source can be given to it"):
        vitrail.open(tmp_path).resume(object())


def test_predicting_wants_a_list(monkeypatch, tmp_path):
    monkeypatch.setattr(vitrail.Run, "__init__", lambda self, path: setattr(self, "path", path))
    with pytest.raises(UsageError, match=r"predict takes a list of pictures\. Got 'a\.png'; write \['a\.png'\]"):
        vitrail.Run(tmp_path).predict("a.png")


def test_a_folder_is_its_pictures_in_natural_order(tmp_path):
    for name in ("10.png", "b/9.png", "2.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert parse_images(tmp_path) == parse_images(str(tmp_path))
    assert [path.relative_to(tmp_path).as_posix() for path in parse_images(tmp_path)] == ["2.png", "10.png", "b/9.png"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"The folder .* must hold pictures"):
        parse_images(empty)


def test_arrays_are_pictures_too(kept):
    from vitrail.predict.predictor import Predictor

    answer = Predictor.open(kept).predict([np.zeros((20, 30, 3), np.uint8)])
    assert answer.ids == ("0",) and answer.probabilities.shape == (1, 2)
