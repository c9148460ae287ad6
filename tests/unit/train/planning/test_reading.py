"""Who asks for stored values is not given a film's own window."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.train.dataset import Dataset
from vitrail.train.planning import fingerprint
from vitrail.train.planning.fingerprint import measure_fingerprint
from vitrail.train.request import DatasetFingerprint

FILMS = Source(
    name="films",
    classes=("a", "b"),
    images=np.zeros((4, 2, 2), np.uint8),
    targets=np.arange(4) % 2,
    ids=tuple("wxyz"),
)


@pytest.mark.parametrize(
    ("policy", "overrides", "chosen"),
    [
        ("auto", {}, True),
        ("auto", {"image.page": "2", "recipe.batch_size": "4"}, True),
        ("12", {}, False),
        ("percentile", {}, False),
        ("auto", {"image.high": "4095"}, False),
        ("auto", {"image.low": "-1000"}, False),
        ("auto", {"image.window": "none"}, False),
    ],
)
def test_a_window_is_chosen_only_where_nobody_asked_for_a_range(monkeypatch, policy, overrides, chosen):
    asked = []

    def watched(*words: object, choose_window: bool, explicit_ends: object) -> DatasetFingerprint:
        asked.append((words[3], choose_window))
        return measure_fingerprint(FILMS, np.arange(4), 0)

    monkeypatch.setattr(fingerprint, "measure_fingerprint", watched)
    splits = {"train": np.arange(4), "val": np.arange(0), "test": np.arange(0)}
    fingerprint.fingerprint_dataset(Dataset(FILMS, splits), DataSettings(range=policy), overrides, 0)
    ((spec, window),) = asked
    assert window == chosen
    assert (spec.page, spec.high) == (int(overrides.get("image.page", 0)), 255.0)
