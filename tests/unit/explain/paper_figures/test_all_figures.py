"""Every figure by its name: drawn of every kind of model, saved with arrays and facts, options never ignored."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kinds import KINDS, TINY
from vitrail.errors import UsageError
from vitrail.explain.figures import SAMPLE_IMAGE
from vitrail.explain.paper_figures.all_figures import FIGURES, draw_figure, save_figure
from vitrail.explain.paper_figures.plots import (
    FigureOptions,
    empty_figure_inputs,
    hash_model_state,
    prepare_figure_inputs,
    resize_spec,
)
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec

pytestmark = pytest.mark.wide


def ready(config, count: int):
    """A model for pictures twice as high and wide, and so many of them."""
    config = replace(config, image_size=tuple(2 * side for side in config.image_size))
    model = create_model(config, seed=1).eval()
    spec = ImageSpec(height=config.image_size[0], width=config.image_size[1], channels=config.channels)
    drawn = np.random.default_rng(0).integers(0, 256, (count, 40, 30, config.channels), dtype=np.uint8)
    if config.channels == 1 and count:
        return model, prepare_figure_inputs(model, spec, [SAMPLE_IMAGE] * count, ["panes.png"] * count)
    return model, prepare_figure_inputs(
        model, spec, list(drawn), [f"{i}.npy" for i in range(count)]
    ) if count else empty_figure_inputs(model)


CAPTIONED = [name for name in FIGURES if name not in ("patch-grid", "token-strip")]
ROTARY = {"axial rotary, RMSNorm", "rotary from one", "dinov3", "rotary of a reference grid, probe"}


@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CAPTIONED)
def test_every_figure_is_drawn_of_every_kind_of_model_or_says_why_not(name, kind):
    config = KINDS[kind]
    counts = {"none": 0, "one": 1, "some": 2}
    model, shown = ready(config, counts[FIGURES[name].num_images])
    absent = (
        (name == "rotary-kernel" and kind not in ROTARY)
        or (name == "position-similarity" and config.positions == "none")
        or (name == "patch-filters" and kind == "soft splits")
    )
    if absent:
        with pytest.raises(UsageError, match=r"This model"):
            draw_figure(name, model, shown)
        return
    drawn = draw_figure(name, model, shown)
    caption = drawn.figure.get_supxlabel()
    assert drawn.figure.get_suptitle() and drawn.facts["source"] in " ".join(caption.split())
    assert all(np.isfinite(array).all() for array in drawn.arrays.values())


@pytest.mark.first(4)
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_saved_with_its_arrays_and_facts_and_always_the_same(name, tmp_path):
    config = replace(TINY, channels=3, positions="none" if name == "rotary-kernel" else "learned", rotary="axial")
    model, shown = ready(config, {"none": 0, "one": 1, "some": 2}[FIGURES[name].num_images])
    drawn = draw_figure(name, model, shown)
    written = save_figure(drawn, tmp_path / "a" / "figure.png")
    assert [path.name for path in written] == ["figure.png", "figure.npz", "figure.json"]
    with Image.open(written[0]) as picture:
        assert picture.width >= 1200 and len(set(picture.convert("L").tobytes())) > 10
    with np.load(written[1]) as arrays:
        assert {key: arrays[key].tobytes() for key in arrays} == {k: v.tobytes() for k, v in drawn.arrays.items()}
    facts = json.loads(written[2].read_text())
    assert facts["figure"] == name and facts["model_sha256"] == hash_model_state(model) and facts["grid"] == [6, 8]
    assert len(facts["pictures"]) == len(shown.images) and set(FIGURES[name].options) <= facts.keys()
    again = save_figure(draw_figure(name, *ready(config, len(shown.images))), tmp_path / "b" / "figure.png")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_every_option_changes_its_figure():
    model, shown = ready(TINY, 2)
    one = shown._replace(images=shown.images[:1], pixels=shown.pixels[:1], names=shown.names[:1])
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
            given = one if entry.num_images == "one" else shown
            before = draw_figure(name, model, given)
            after = draw_figure(name, model, given, replace(FigureOptions(), **{option: tries[option]}))
            changed = any(array.tobytes() != after.arrays[key].tobytes() for key, array in before.arrays.items())
            assert changed or before.facts["limit"] != after.facts["limit"], (name, option)


def test_an_option_that_a_figure_does_not_have_is_refused():
    model, shown = ready(TINY, 1)
    with pytest.raises(UsageError, match=r"attention-rollout has no option share\. These have it: attention-heads\."):
        draw_figure("attention-rollout", model, shown, FigureOptions(share=0.5))
    with pytest.raises(UsageError, match=r"blocks 0 to 1\. Got layer=2\."):
        draw_figure("attention-heads", model, shown, FigureOptions(layer=2))


def test_other_names_and_numbers_of_pictures_are_refused(tmp_path):
    model, one = ready(TINY, 1)
    _, two = ready(TINY, 2)
    with pytest.raises(UsageError, match=r"no figure called 'rollout'\. Known: attention-rollout, patch-filters"):
        draw_figure("rollout", model, one)
    for name, shown, message in (
        ("patch-filters", one, "no pictures. Got 1"),
        ("attention-heads", two, "one picture. Got 2"),
        ("pca", empty_figure_inputs(model), "at least one picture. Got 0"),
    ):
        with pytest.raises(UsageError, match=rf"The figure {name} is drawn of {message}\."):
            draw_figure(name, model, shown)
    with pytest.raises(UsageError, match=r"saved as PNG.* Got figure\.pdf; call it NAME\.png"):
        save_figure(draw_figure("patch-filters", model, empty_figure_inputs(model)), tmp_path / "figure.pdf")
    assert not list(tmp_path.iterdir())


def test_pictures_are_shown_as_the_model_reads_them():
    padding = create_model(replace(TINY, image_size=(10, 7), pad=True, channels=1)).eval()
    shown = prepare_figure_inputs(padding, ImageSpec(height=10, width=7, channels=1), [SAMPLE_IMAGE], ["panes.png"])
    assert shown.grid == (3, 4) and shown.images.shape == (1, 1, 12, 8) and shown.pixels.shape == (1, 12, 8, 1)
    assert (shown.pixels[:, 10:] == 0).all() and shown.pixels[:, :10].max() > 0
    bigger = prepare_figure_inputs(
        padding, resize_spec(ImageSpec(height=12, width=8, channels=1), (24, 16)), [SAMPLE_IMAGE], ["panes.png"]
    )
    assert bigger.grid == (6, 8)


def test_the_hash_is_of_names_and_numbers():
    one, same, other = create_model(TINY, seed=1), create_model(TINY, seed=1), create_model(TINY, seed=2)
    assert hash_model_state(one) == hash_model_state(same) != hash_model_state(other)
