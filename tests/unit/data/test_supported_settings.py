"""No setting is ignored: a source follows it or refuses it, and says so."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from torch.utils.data import Dataset

from tar_files import classed, write_tar
from vitrail.data.open import BUILT_IN, open_source
from vitrail.data.settings import COMMON_SETTINGS, SETTING_MEANINGS, SUPPORTED_SETTINGS, DataSettings
from vitrail.errors import UsageError

pandas = pytest.importorskip("pandas")
ASKED = {
    "data_root": "elsewhere", "path": "x", "targets": ("y",), "split": "part", "group": "patient",
    "decimal": "comma", "uncertain": "ignore", "class_level": 2, "keep_empty": True, "allow_outside_root": True,
}  # fmt: skip
TYPED = {
    "data_root": "--data-root elsewhere", "path": "--data.path x", "targets": "--data.targets y",
    "split": "--data.split part", "group": "--group patient", "uncertain": "--data.uncertain ignore",
    "decimal": "--data.decimal comma", "class_level": "--data.class_level 2", "keep_empty": "--data.keep_empty true",
    "allow_outside_root": "--data.allow_outside_root true",
}  # fmt: skip


class Rows(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return np.full((8, 8), row, np.uint8), row % 2


PICTURES, LABELS = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8), np.array([0, 1, 0, 1])


@pytest.fixture
def sources(tmp_path, draw):
    """A source of each kind that a few lines make."""
    root = draw("folders/cat/1.png", "folders/dog/1.png", "films/a.png", "films/b.png")
    (root / "films/films.csv").write_text("path,label\na.png,x\nb.png,y\n")
    np.savez(root / "photos.npz", x=PICTURES, y=LABELS)
    (root / "single").mkdir()
    np.save(root / "single/photos.npy", PICTURES)
    np.save(root / "single/photos_labels.npy", LABELS)
    return {
        "built-in set": "digits",
        "class folders": root / "folders",
        "manifest": root / "films/films.csv",
        "archive": root / "photos.npz",
        "array": root / "single/photos.npy",
        "shards": write_tar(root / "pets.tar", classed("abab")),
        "frame": pandas.DataFrame({"image": list(PICTURES), "label": ["x", "y", "x", "y"]}),
        "pairs": list(zip(PICTURES, [0, 1, 0, 1], strict=True)),
        "arrays": (PICTURES, LABELS),
        "torch data set": Rows(),
        "opened": open_source("digits"),
    }


KINDS = (
    "built-in set",
    "class folders",
    "manifest",
    "archive",
    "array",
    "shards",
    "frame",
    "pairs",
    "arrays",
    "torch data set",
    "opened",
)


def test_every_setting_is_followed_everywhere_or_has_a_meaning_to_refuse_it_by():
    names = {field.name for field in dataclasses.fields(DataSettings)}
    assert set(SETTING_MEANINGS) | COMMON_SETTINGS == names and not set(SETTING_MEANINGS) & COMMON_SETTINGS
    assert all(honoured <= set(SETTING_MEANINGS) for honoured in SUPPORTED_SETTINGS.values())
    assert set(ASKED) == set(SETTING_MEANINGS)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_of_source_cannot_follow_is_refused_with_the_flag_as_typed(sources, kind):
    assert len(open_source(sources[kind])) >= 2
    for name in set(ASKED) - SUPPORTED_SETTINGS[kind]:
        with pytest.raises(UsageError) as refused:
            open_source(sources[kind], DataSettings(**{name: ASKED[name]}))
        assert TYPED[name] in str(refused.value), name
        assert str(refused.value).endswith(".")


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_named_set_refuses_columns_and_what_labels_mean(name):
    with pytest.raises(UsageError) as refused:
        open_source(name, DataSettings(uncertain="ignore"))
    assert str(refused.value) == (
        "--data.uncertain ignore says what a label of -1 means in manifests, arrays and other tables; the set "
        f"{name} has no such labels."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_parting_and_checking_are_followed_by_every_kind(sources, kind):
    settings = DataSettings(
        range="8", skip_bad=True, exclude="x.csv", val_fraction=0.3, test_fraction=0.1, folds=2, fold=1
    )
    assert len(open_source(sources[kind], settings)) == len(open_source(sources[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_reason_of_a_task_is_a_whole_sentence_for_every_kind(sources, kind):
    reasons = [open_source(sources[kind]).reason]
    if "uncertain" in SUPPORTED_SETTINGS[kind]:
        reasons.append(open_source(sources[kind], DataSettings(task="classification")).reason)
        assert all(reasons)
    for reason in filter(None, reasons):
        assert reason[0].isupper() and reason.endswith(".") and not reason.endswith("..")
