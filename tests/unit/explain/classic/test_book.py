"""Every figure by its name: drawn of every kind of model, saved with arrays and facts, options never ignored."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kinds import KINDS, TINY
from vitrail.errors import UsageError
from vitrail.explain.classic.book import FIGURES, draw, save
from vitrail.explain.classic.shown import Choices, hash_of, larger, nothing, show
from vitrail.explain.picture import PANES
from vitrail.model.vit import create
from vitrail.spec import ImageSpec


def ready(config, count: int):
    """A model for pictures twice as high and wide, and so many of them."""
    config = replace(config, image_size=tuple(2 * side for side in config.image_size))
    model = create(config, seed=1).eval()
    spec = ImageSpec(height=config.image_size[0], width=config.image_size[1], channels=config.channels)
    drawn = np.random.default_rng(0).integers(0, 256, (count, 40, 30, config.channels), dtype=np.uint8)
    if config.channels == 1 and count:
        return model, show(model, spec, [PANES] * count, ["panes.png"] * count)
    return model, show(model, spec, list(drawn), [f"{i}.npy" for i in range(count)]) if count else nothing(model)


CAPTIONED = [name for name in FIGURES if name not in ("patch-grid", "token-strip")]
ROTARY = {"axial rotary, RMSNorm", "rotary from one", "dinov3"}


@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CAPTIONED)
def test_every_figure_is_drawn_of_every_kind_of_model_or_says_why_not(name, kind):
    config = KINDS[kind]
    counts = {"none": 0, "one": 1, "some": 2}
    model, shown = ready(config, counts[FIGURES[name].pictures])
    absent = (
        (name == "rotary-kernel" and kind not in ROTARY)
        or (name == "position-similarity" and config.positions == "none")
        or (name == "patch-filters" and kind == "soft splits")
    )
    if absent:
        with pytest.raises(UsageError, match=r"This model"):
            draw(name, model, shown)
        return
    drawn = draw(name, model, shown)
    caption = drawn.figure.get_supxlabel()
    assert drawn.figure.get_suptitle() and drawn.facts["source"] in " ".join(caption.split())
    assert all(np.isfinite(array).all() for array in drawn.arrays.values())


@pytest.mark.first(4)
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_saved_with_its_arrays_and_facts_and_always_the_same(name, tmp_path):
    config = replace(TINY, channels=3, positions="none" if name == "rotary-kernel" else "learned", rotary="axial")
    model, shown = ready(config, {"none": 0, "one": 1, "some": 2}[FIGURES[name].pictures])
    drawn = draw(name, model, shown)
    written = save(drawn, tmp_path / "a" / "figure.png")
    assert [path.name for path in written] == ["figure.png", "figure.npz", "figure.json"]
    with Image.open(written[0]) as picture:
        assert picture.width >= 1200 and len(set(picture.convert("L").tobytes())) > 10
    with np.load(written[1]) as arrays:
        assert {key: arrays[key].tobytes() for key in arrays} == {k: v.tobytes() for k, v in drawn.arrays.items()}
    facts = json.loads(written[2].read_text())
    assert facts["figure"] == name and facts["model_sha256"] == hash_of(model) and facts["grid"] == [6, 8]
    assert len(facts["pictures"]) == len(shown.images) and set(FIGURES[name].options) <= facts.keys()
    again = save(draw(name, *ready(config, len(shown.images))), tmp_path / "b" / "figure.png")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_every_option_changes_its_figure():
    model, shown = ready(TINY, 2)
    one = shown._replace(images=shown.images[:1], pictures=shown.pictures[:1], names=shown.names[:1])
    tries = {
        "layer": 0,
        "together": False,
        "residual": False,
        "renormalise": False,
        "share": 0.2,
        "threshold": -0.3,
        "token": 3,
    }
    for name, entry in FIGURES.items():
        for option in entry.options:
            given = one if entry.pictures == "one" else shown
            before = draw(name, model, given)
            after = draw(name, model, given, replace(Choices(), **{option: tries[option]}))
            changed = any(array.tobytes() != after.arrays[key].tobytes() for key, array in before.arrays.items())
            assert changed or before.facts["limit"] != after.facts["limit"], (name, option)


def test_an_option_that_a_figure_does_not_have_is_refused():
    model, shown = ready(TINY, 1)
    with pytest.raises(UsageError, match=r"attention-rollout has no option share\. These have it: attention-heads\."):
        draw("attention-rollout", model, shown, Choices(share=0.5))
    with pytest.raises(UsageError, match=r"2 blocks, counted from 0\. Got layer=2\."):
        draw("attention-heads", model, shown, Choices(layer=2))


def test_other_names_and_numbers_of_pictures_are_refused(tmp_path):
    model, one = ready(TINY, 1)
    _, two = ready(TINY, 2)
    with pytest.raises(UsageError, match=r"no figure called 'rollout'\. Known: attention-rollout, patch-filters"):
        draw("rollout", model, one)
    for name, shown, message in (
        ("patch-filters", one, "no pictures. Got 1"),
        ("attention-heads", two, "one picture. Got 2"),
        ("pca", nothing(model), "at least one picture. Got 0"),
    ):
        with pytest.raises(UsageError, match=rf"The figure {name} is drawn of {message}\."):
            draw(name, model, shown)
    with pytest.raises(UsageError, match=r"saved as PNG.* Got figure\.pdf; call it NAME\.png"):
        save(draw("patch-filters", model, nothing(model)), tmp_path / "figure.pdf")
    assert not list(tmp_path.iterdir())


def test_pictures_are_shown_as_the_model_reads_them():
    padding = create(replace(TINY, image_size=(10, 7), pad=True, channels=1)).eval()
    shown = show(padding, ImageSpec(height=10, width=7, channels=1), [PANES], ["panes.png"])
    assert shown.grid == (3, 4) and shown.images.shape == (1, 1, 12, 8) and shown.pictures.shape == (1, 12, 8, 1)
    assert (shown.pictures[:, 10:] == 0).all() and shown.pictures[:, :10].max() > 0
    bigger = show(padding, larger(ImageSpec(height=12, width=8, channels=1), (24, 16)), [PANES], ["panes.png"])
    assert bigger.grid == (6, 8)


def test_the_hash_is_of_names_and_numbers():
    one, same, other = create(TINY, seed=1), create(TINY, seed=1), create(TINY, seed=2)
    assert hash_of(one) == hash_of(same) != hash_of(other)
