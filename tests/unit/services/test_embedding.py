"""`vitrail embed`: features into files and tables, from any weights."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.checkpoints import bundle, bundle_weights
from vitrail.checkpoints.save import save_model
from vitrail.cli.main import main
from vitrail.errors import DataError, UsageError
from vitrail.model.registry import config_from_name
from vitrail.model.vit import ViT, create_model
from vitrail.predict.embedder import Embeddings
from vitrail.services import embedding
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=16, width=16)


@pytest.fixture(autouse=True)
def threads_kept() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def tiny(seed: int = 0, outputs: int = 0) -> ViT:
    return create_model(dataclasses.replace(config_from_name("vit_mu_patch8_16"), outputs=outputs), seed).eval()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    bundle_weights.save_bundle(
        tmp_path / "kept", tiny(), SPEC, "classification", (), {}
    )  # a backbone: no outputs, no names
    return tmp_path / "kept"


@pytest.fixture
def films(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    (tmp_path / "films").mkdir()
    for place in range(6):
        Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).save(tmp_path / "films" / f"{place}.png")
    return tmp_path / "films"


def typed(*words: object) -> int:
    return main(["embed", *map(str, words), "--device", "cpu"])


def rows_in(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize(("features", "shape"), [("pooled", (6, 32)), ("patches", (6, 2, 2, 32))])
def test_an_array_has_its_names_beside_it(kept, films, tmp_path, capsys, features, shape):
    assert typed(kept, films, "--to", tmp_path / "out.npy", "--features", features) == 0
    assert capsys.readouterr().out == f"Features {list(shape[1:])} of 6 pictures written to {tmp_path / 'out.npy'}\n"
    found = embedding.open_embedder(kept, "cpu").embed(sorted(films.iterdir()), embedding.parse_feature_kind(features))
    stored = np.load(tmp_path / "out.npy")
    assert stored.shape == shape
    np.testing.assert_array_equal(stored, found.vectors)
    names = rows_in((tmp_path / "out.csv").read_text())
    assert [(row["row"], row["id"]) for row in names] == [(f"{place}", f"{place}.png") for place in range(6)]
    assert [row["path"] for row in names] == list(found.paths)


@pytest.mark.parametrize("features", ["mean", "patches"])
def test_a_parquet_file_holds_names_and_features(kept, films, tmp_path, monkeypatch, features):
    import pyarrow.parquet

    monkeypatch.setattr("vitrail.services.embedding.ROW_GROUP_BYTES", 1)
    assert typed(kept, films, "--to", tmp_path / "out.parquet", "--features", features) == 0
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    found = embedding.open_embedder(kept, "cpu").embed(sorted(films.iterdir()), embedding.parse_feature_kind(features))
    shape = tuple(map(int, table.schema.metadata[b"shape"].split(b",")))
    assert table["id"].to_pylist() == list(found.ids) and table["path"].to_pylist() == list(found.paths)
    np.testing.assert_array_equal(np.array(table["features"].to_pylist(), np.float32).reshape(6, *shape), found.vectors)


def test_without_pyarrow_it_says_what_to_install(kept, films, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert typed(kept, films, "--to", "out.parquet") == 2
    assert capsys.readouterr().err == "vitrail: Parquet files need pyarrow: pip install 'vitrail[data]'.\n"


def test_the_nearest_are_a_table(kept, films, capsys):
    assert typed(kept, films, "--nearest", 2) == 0
    rows = rows_in(capsys.readouterr().out)
    found = embedding.open_embedder(kept, "cpu").embed(sorted(films.iterdir())).nearest(2)
    assert [row["nearest_id"] for row in rows] == [f"{row}.png" for row in found.rows.reshape(-1)]
    assert [row["rank"] for row in rows] == ["1", "2"] * 6
    assert [float(row["similarity"]) for row in rows] == pytest.approx(found.similarities.reshape(-1), abs=1e-6)
    assert rows[0]["path"] == str(films / "0.png") and not any(row["path"] == row["nearest"] for row in rows)


def test_the_nearest_of_other_pictures_find_the_same_one(kept, films, tmp_path, capsys):
    copy = tmp_path / "copy.png"
    copy.write_bytes((films / "4.png").read_bytes())
    words = (kept, copy, "--nearest", 1, "--of", films, "--to", tmp_path / "copy.npy", "--json")
    assert typed(*words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["pictures"] == 1 and told["shape"] == [32] and told["to"] == str(tmp_path / "copy.npy")
    (row,) = told["nearest"]
    assert row["nearest"] == str(films / "4.png") and row["similarity"] == pytest.approx(1, abs=1e-6)
    assert np.load(tmp_path / "copy.npy").shape == (1, 32)


def test_weights_of_other_libraries_and_ensembles_are_models_too(films, tmp_path):
    sizes = {"image_size": (32, 32), "width": 48, "depth": 2, "heads": 3, "mlp_width": 96, "outputs": 0}
    model = create_model(dataclasses.replace(config_from_name("vit_tiny_patch16_224"), **sizes), 0).eval()
    save_model(tmp_path / "theirs", model, ImageSpec(height=32, width=32), (), "timm")
    paths = sorted(films.iterdir())
    found = embedding.open_embedder(tmp_path / "theirs", "cpu").embed(paths, "class")
    assert found.vectors.shape == (6, 48)
    for seed in (0, 1):
        bundle_weights.save_bundle(tmp_path / f"{seed}", tiny(seed, 2), SPEC, "classification", ("a", "b"), {})
    bundle.save_ensemble(tmp_path / "both", [tmp_path / "0", tmp_path / "1"])
    both = embedding.open_embedder(tmp_path / "both", "cpu").embed(paths)
    first = embedding.open_embedder(tmp_path / "0", "cpu").embed(paths)
    np.testing.assert_array_equal(both.vectors[:, :32], first.vectors)


def test_memory_does_not_grow_with_the_pictures(tmp_path):
    alive: weakref.WeakSet[Embeddings] = weakref.WeakSet()
    most = 0

    def parts() -> Iterator[Embeddings]:
        nonlocal most
        for place in range(50):
            part = Embeddings(paths=("",) * 4, ids=(str(place),) * 4, vectors=np.full((4, 8), place, np.float32))
            alive.add(part)
            most = max(most, len(alive))
            yield part
            del part

    done = embedding.collect_embeddings(parts(), tmp_path / "out.npy", keep=False)
    assert (done.count, done.shape, done.embeddings) == (200, (8,), None) and most <= 2
    assert np.load(tmp_path / "out.npy", mmap_mode="r").shape == (200, 8)


def test_what_cannot_be_read_is_left_out_and_named(kept, films, tmp_path, capsys):
    (films / "3.png").write_bytes(b"not a picture")
    assert typed(kept, films, "--to", tmp_path / "out.npy") == 3
    assert "3.png" in capsys.readouterr().err and not (tmp_path / "out.npy").exists()
    assert typed(kept, films, "--to", tmp_path / "out.npy", "--skip-bad") == 0
    assert f"left out {films / '3.png'}:" in capsys.readouterr().err and np.load(tmp_path / "out.npy").shape == (5, 32)
    with pytest.raises(DataError, match="no picture to take features of"):
        embedding.collect_embeddings(iter(()), tmp_path / "none.npy", keep=False)
    assert not (tmp_path / "none.npy").exists()


def test_a_table_of_somebody_else_is_not_written_over(tmp_path, kept, films, capsys):
    manifest = tmp_path / "films.csv"
    manifest.write_text("path,finding\n0.png,normal\n")
    assert typed(kept, films, "--to", tmp_path / "films.npy") == 2
    told = capsys.readouterr().err
    assert "films.csv is no table of features" in told and "--to another name, such as films-features.npy" in told
    assert manifest.read_text() == "path,finding\n0.png,normal\n" and not (tmp_path / "films.npy").exists()
    for _ in range(2):  # our own table is written anew
        assert typed(kept, films, "--to", tmp_path / "again.npy") == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a.png",), r"Features go into a file, --to FILE\.npy or FILE\.parquet, or are compared, --nearest 5"),
        (("a.png", "--to", "a.txt"), r"name ends in \.npy or \.parquet\. Got a\.txt"),
        (("a.png", "--to", "a.npy", "--of", "b"), r"--of names pictures to search, so it needs --nearest"),
        (("a.png", "--nearest", "3", "--features", "patches"), r"one vector a picture: .* not patches"),
        (("a.png", "--nearest", "-1"), r"at least 1\. Got -1"),
        ((), r"PATHS are missing"),
        (("a.png", "--to", "a.npy", "--features", "dense"), r"--features must be one of pooled, class, mean, patches"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_a_model_is_read(words, said, capsys):
    assert main(["embed", "nowhere", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(said, error)


def test_a_model_that_is_not_there_and_words_that_mean_nothing(tmp_path, capsys):
    assert main(["embed", str(tmp_path / "absent"), "a.png", "--to", "a.npy"]) == 2
    assert "absent does not exist" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"pooled, class, mean or patches\. Got 'dense'"):
        embedding.parse_feature_kind("dense")
