"""The views of a picture: which there are, in which order, and what a bundle notes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.data.loader import InMemoryImageStore
from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate.inference import InferenceSettings, run_inference
from vitrail.evaluate.probabilities import softmax
from vitrail.evaluate.tta import TtaViews
from vitrail.spec import ImageSpec

ROW = torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
TALL = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).reshape(1, 1, 3, 2)
EVERY = [
    TtaViews(),
    TtaViews(flip=True),
    TtaViews(shift=1),
    TtaViews(flip=True, shift=1),
    TtaViews(shift=1, vertical=True),
    TtaViews(flip=True, shift=2, vertical=True),
]


def rows(views: TtaViews, picture: torch.Tensor = ROW) -> list[list[float]]:
    return [view.flatten().tolist() for view in views.iter_views(picture)]


def test_the_picture_comes_first_then_itself_moved_each_before_its_mirror_image():
    assert rows(TtaViews()) == [[1, 2, 3, 4]]
    assert rows(TtaViews(flip=True)) == [[1, 2, 3, 4], [4, 3, 2, 1]]
    assert rows(TtaViews(shift=2)) == [[1, 2, 3, 4], [1, 1, 1, 2], [3, 4, 4, 4]]
    assert rows(TtaViews(flip=True, shift=1))[2:] == [
        [1, 1, 2, 3],
        [3, 2, 1, 1],
        [2, 3, 4, 4],
        [4, 4, 3, 2],
    ]


def test_up_and_down_come_after_the_sides_with_the_edge_repeated():
    sides, both = (rows(TtaViews(flip=True, shift=1, vertical=vertical), TALL) for vertical in (False, True))
    assert both[:6] == sides
    assert both[6:] == [
        [1, 2, 1, 2, 3, 4],
        [2, 1, 2, 1, 4, 3],
        [3, 4, 5, 6, 5, 6],
        [4, 3, 6, 5, 6, 5],
    ]
    assert rows(TtaViews(shift=1, vertical=True), TALL) == both[::2]


@pytest.mark.parametrize("views", EVERY)
def test_they_are_counted_without_being_made(views):
    assert views.num_views == len(rows(views, torch.zeros(1, 1, 3, 4)))


@pytest.mark.parametrize("views", EVERY)
def test_a_bundle_notes_them(views):
    assert TtaViews.from_notes(views.to_notes(), "here") == views


def test_a_bundle_from_before_there_were_shifts_has_none():
    assert TtaViews.from_notes({"mirror": True}, "here") == TtaViews(flip=True)
    assert TtaViews.from_notes({}, "here") == TtaViews()


def test_a_bundle_from_before_there_were_vertical_shifts_keeps_its_six_views():
    old = TtaViews.from_notes({"mirror": True, "shift": 1}, "here")
    assert old == TtaViews(flip=True, shift=1) and old.num_views == 6


@pytest.mark.parametrize("shift", [-1, 0.5, "1", True, None])
def test_a_bundle_that_notes_no_number_of_pixels_is_damaged(shift):
    with pytest.raises(DamagedFileError, match=r"config\.json notes a shift of .*; expected a whole number of pixels"):
        TtaViews.from_notes({"shift": shift}, "config.json")


@pytest.mark.parametrize(("vertical", "shift"), [(1, 1), ("yes", 1), (None, 1), (True, 0)])
def test_a_bundle_that_notes_a_vertical_shift_that_cannot_be_is_damaged(vertical, shift):
    with pytest.raises(
        DamagedFileError, match=rf"config\.json notes shift_vertical {vertical!r} and a shift of {shift}"
    ):
        TtaViews.from_notes({"shift": shift, "shift_vertical": vertical}, "config.json")


def test_a_shift_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match=r"0 or more pixels\. Got -1\."):
        TtaViews(shift=-1)
    with pytest.raises(UsageError, match=r"below the width of the pictures, 4 pixels\. Got 4\."):
        rows(TtaViews(shift=4))
    with pytest.raises(UsageError, match=r"below the height of the pictures, 1 pixels\. Got 1\."):
        rows(TtaViews(shift=1, vertical=True))
    with pytest.raises(UsageError, match=r"Vertical shifts need a shift of 1 pixel or more\. Got 0\."):
        TtaViews(vertical=True)


@pytest.mark.parametrize("views", EVERY)
def test_the_answer_is_the_mean_over_all_views(views):
    images = torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))

    def answers(shown, **said):
        spec = ImageSpec(height=4, width=4, channels=1)
        return softmax(run_inference(net, InMemoryImageStore(shown), np.arange(5), spec, InferenceSettings(**said)))

    expected = np.mean([answers(view.to(torch.uint8)) for view in views.iter_views(images.float())], axis=0)
    np.testing.assert_allclose(answers(images, views=views), expected, atol=1e-6)
    if views.num_views > 1:
        assert np.abs(answers(images) - expected).max() > 1e-3
