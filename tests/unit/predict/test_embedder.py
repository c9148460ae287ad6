"""Features against a slow reading of what they are: one picture at a time, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.preprocess import normalize, preprocess_image
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.inference import InferenceSettings
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT, create_model
from vitrail.predict.embedder import Backbone, Embedder, Embeddings, join_embeddings
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=8, width=12, channels=1, mean=(0.3,))
SHAPE = {
    "image_size": (8, 12), "patch": (4, 4), "channels": 1, "width": 16, "depth": 3, "heads": 2, "mlp_width": 32,
    "outputs": 3, "init": "torch", "dropout": 0.5,
}  # fmt: skip
MODELS = {
    "plain": {},
    "registers": {"registers": 2, "pool": "class+mean"},
    "no class token": {"class_token": False, "pool": "mean"},
    "two blocks": {"pool": "mean", "pool_blocks": 2},
    "two blocks apart": {"pool": "mean", "pool_blocks": 2, "pool_every": 2},
    "distilled": {"distillation_token": True, "distillation_head": True},
}


def model(name: str = "plain", seed: int = 0) -> ViT:
    return create_model(ViTConfig(**{**SHAPE, **MODELS[name]}), seed).eval()


def embedder(*names: str) -> Embedder:
    return Embedder([Backbone(model=model(name, seed), spec=SPEC) for seed, name in enumerate(names or ("plain",))])


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    generator = np.random.default_rng(0)
    paths = [tmp_path / f"{place}.png" for place in range(5)]
    for path in paths:
        Image.fromarray(generator.integers(0, 256, (9, 14), dtype=np.uint8)).save(path)
    return paths


def slowly(net: ViT, path: Path, features: str) -> np.ndarray:
    """The features of one picture by what the words mean."""
    with torch.inference_mode():
        x, places = net.embed(normalize(preprocess_image(path, SPEC)[None], SPEC))
        blocks = [net.encoder.prepare_tokens(x)]
        for block in net.encoder.blocks:
            blocks.append(block(blocks[-1], places))
        tokens = net.encoder.norm(blocks[-1])[0]  # [T, D]
        if features == "class":
            return tokens[0].numpy()
        if features == "pooled":
            last = [net.encoder.norm(each) for each in blocks[-net.config.pool_span :: net.config.pool_every]]
            return net.pool(torch.cat(last, dim=-1))[0].numpy()
        first, (rows, columns) = net.config.prefix, net.config.grid
        patches = [tokens[first + place].numpy() for place in range(rows * columns)]
        if features == "mean":
            return np.sum(patches, axis=0) / len(patches)
        return np.array([[patches[row * columns + column] for column in range(columns)] for row in range(rows)])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("features", ["pooled", "class", "mean", "patches"])
def test_features_are_what_their_names_say(pictures, name, features):
    if features == "class" and name == "no class token":
        with pytest.raises(UsageError, match=r"no class token\. Take pooled, mean or patches"):
            embedder(name).embed(pictures, features)
        return
    found = embedder(name).embed(pictures, features)
    expected = np.stack([slowly(model(name), path, features) for path in pictures])
    assert found.vectors.dtype == np.float32 and found.vectors.shape == expected.shape
    np.testing.assert_allclose(found.vectors, expected, atol=2e-6)
    assert np.ptp(found.vectors, axis=0).max() > 1e-3
    assert (found.paths, found.ids[0]) == (tuple(map(str, pictures)), "0.png")


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_batches_of_any_size_give_the_same(pictures, batch):
    one = Backbone(model=model("plain", 0), spec=SPEC, settings=InferenceSettings(batch_size=batch))
    parts = list(Embedder([one]).embed_batches(pictures))
    assert [len(part) for part in parts] == [min(batch, 5 - start) for start in range(0, 5, batch)]
    np.testing.assert_allclose(join_embeddings(parts).vectors, embedder().embed(pictures).vectors, atol=2e-6)


@pytest.mark.parametrize(("features", "axes"), [("mean", 2), ("patches", 4)])
def test_several_models_give_their_features_side_by_side(pictures, features, axes):
    both = embedder("plain", "registers").embed(pictures, features).vectors
    assert both.shape[-1] == 32 and both.ndim == axes
    one = Embedder([Backbone(model=model("registers", 1), spec=SPEC)]).embed(pictures, features).vectors
    np.testing.assert_array_equal(both[..., 16:], one)


def test_models_of_different_patches_cannot_look_together():
    other = create_model(ViTConfig(**{**SHAPE, "patch": (2, 2)}), 0)
    with pytest.raises(UsageError, match=r"patches of one size\. Got \(8, 12\) in \(2, 3\) .* in \(4, 6\)"):
        Embedder([Backbone(model=model(), spec=SPEC), Backbone(model=other, spec=SPEC)])


def test_a_predictor_s_own_models_are_asked(pictures):
    predictor = Predictor([PredictorMember(model=model(), spec=SPEC, classes=("cat", "dog", "fish"))])
    found = Embedder.from_predictor(predictor).embed(pictures)
    np.testing.assert_array_equal(found.vectors, embedder().embed(pictures).vectors)
    foreign = Predictor([PredictorMember(model=torch.nn.Identity(), spec=SPEC, classes=("cat", "dog"))])
    with pytest.raises(UsageError, match=r"Vision Transformers\. This model is none"):
        Embedder.from_predictor(foreign)


def test_unreadable_pictures_stop_or_are_named(pictures):
    whole = embedder().embed(pictures)
    pictures[2].write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"2\.png"):
        embedder().embed(pictures)
    found = embedder().embed(pictures, skip_bad=True)
    assert [path for path, _ in found.skipped] == [str(pictures[2])] and len(found) == 4
    np.testing.assert_allclose(found.vectors, np.delete(whole.vectors, 2, 0), atol=2e-6)
    with pytest.raises(DataError, match="no picture to take features of"):
        embedder().embed([pictures[2]], skip_bad=True)


def test_features_that_are_no_numbers_are_refused(pictures):
    broken = embedder()
    with torch.no_grad():
        broken.backbones[0].model.encoder.norm.weight[0] = float("nan")
    with pytest.raises(DataError, match=r"5 of 80 features are NaN or infinite"):
        broken.embed(pictures)


def test_pictures_of_patches_are_not_compared(pictures):
    maps, plain = embedder().embed(pictures, "patches"), embedder().embed(pictures)
    for asked, among in ((maps, None), (plain, maps)):
        with pytest.raises(UsageError, match=r"one for each patch\. Take pooled, class or mean"):
            asked.nearest(1, among)
    assert isinstance(plain, Embeddings) and plain.nearest(2).rows.shape == (5, 2)
    assert plain.nearest(1, plain).rows[:, 0].tolist() == [0, 1, 2, 3, 4]
