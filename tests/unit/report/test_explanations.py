"""Maps on the page: which pictures have one, that they come back as they were stored, and what is said beside them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from unit.evaluate import test_regression_predictions
from unit.report.reader_sample import labels, stored, two_classes
from unit.report.test_accessible import Outline
from unit.report.test_page import Balanced
from vitrail.errors import DamagedFileError
from vitrail.evaluate.decisions import Decisions
from vitrail.explain.overlay import blend_map
from vitrail.report import image_selection, page, saliency, thumbnails
from vitrail.report.audience import AudienceRequest
from vitrail.report.saliency import MapInfo, StoredExplanations

ABOUT = MapInfo(
    method="legrad", layer="blocks 0 to 3", line="Where <more> attention helps.", scale="positive", patch=(4, 2)
)


def thumbnail_rows(folder) -> np.ndarray:
    return np.array(list(thumbnails.load_thumbnails(folder)))


def maps(answers, rows, side=(2, 4)) -> StoredExplanations:
    """A drawn map for each of the wanted rows; the first hides its strongest patch."""
    pairs = saliency.select_rows_to_explain(answers, rows)
    values = np.random.default_rng(0).random((len(pairs), *side)).astype(np.float32)
    hidden = np.zeros(values.shape, bool)
    hidden[0].flat[values[0].argmax()] = True
    found = np.array(pairs, np.int64)
    return StoredExplanations(about=ABOUT, rows=found[:, 0], targets=found[:, 1], values=values, artifact_mask=hidden)


@pytest.fixture
def run(tmp_path):
    test, valid, decided = two_classes()
    stored(tmp_path, test, valid, decided)
    return tmp_path, test


def explained(run) -> str:
    folder, test = run
    saliency.save_explanations(folder, maps(test, thumbnail_rows(folder)))
    return page.build_report(folder).read_text(encoding="utf-8")


def test_worst_answers_and_others_take_turns_and_the_answer_is_explained():
    test, _, decided = two_classes()
    rows = image_selection.select_with_worst(test, decided, thumbnails.MAX_THUMBNAILS)
    pairs = saliency.select_rows_to_explain(test, rows)
    assert len(pairs) == 12 and pairs[0][0] == rows[0], "the worst comes first"
    truth = [bool(test.targets[row] == test.indices[row]) for row, _ in pairs]
    assert truth == [False, True] * 6
    assert all(of == test.indices[row] for row, of in pairs)
    assert saliency.select_rows_to_explain(test, rows[:0]) == []


def test_of_labels_the_one_that_is_most_wrong_is_explained_and_else_the_likeliest_that_is_there():
    test, _ = labels()
    pairs = saliency.select_rows_to_explain(test, image_selection.select_images(test, 12))
    for place, (row, of) in enumerate(pairs):
        truth, chances = test.targets[row], test.probabilities[row]
        bad = image_selection.wrong_label_mask(test)[row]
        assert bad.any() == (place % 2 == 0)
        if bad.any():
            assert bad[of] and abs(chances[of] - truth[of]) == np.abs(chances - truth)[bad].max()
        elif (truth >= 0.5).any():
            assert truth[of] == 1 and chances[of] == chances[truth >= 0.5].max()
        else:
            assert chances[of] == chances[test.known_mask[row]].max()


def test_of_numbers_the_largest_errors_come_first_and_the_first_known_column_is_explained():
    truth = np.column_stack([np.arange(40.0), np.arange(40.0)])
    truth[:, 0][::3] = np.nan
    test = test_regression_predictions.table(truth, np.nan_to_num(truth) + np.arange(40)[:, None] / 9)
    rows = image_selection.select_images(test, 12)
    assert saliency.wrong_row_mask(test, rows).tolist() == [True] * 12 + [False] * 12
    for row, of in saliency.select_rows_to_explain(test, rows):
        assert of == (1 if np.isnan(truth[row, 0]) else 0)


def test_what_is_stored_comes_back(tmp_path):
    test, _, decided = two_classes()
    kept = maps(test, image_selection.select_with_worst(test, decided, 12))
    kept = replace(kept, about=replace(ABOUT, remarks=("One.",), nothing=("a.png: why.", "b.png: why.")))
    saliency.save_explanations(tmp_path, kept)
    again = saliency.load_explanations(tmp_path)
    assert again.about == kept.about
    for name in ("rows", "targets", "values", "artifact_mask"):
        np.testing.assert_array_equal(getattr(again, name), getattr(kept, name))


def test_every_map_stands_beside_its_picture_with_method_class_probability_and_one_honest_line(run):
    folder, test = run
    built = explained(run)
    assert "Where &lt;more&gt; attention helps." in built and "by legrad (blocks 0 to 3)" in built
    assert "cannot be compared" in built and "global information instead of picture content" in built
    assert built.count('<div class="two">') == 12 == built.count('alt="the picture"')
    kept = saliency.load_explanations(folder)
    for at, (row, of) in enumerate(zip(kept.rows.tolist(), kept.targets.tolist(), strict=True)):
        name, chance = test.classes[of], f"{100 * test.probabilities[row, of]:.1f}\u202f%"
        shown = np.where(kept.artifact_mask[at], 0, kept.values[at])
        place = saliency.describe_peak_location(shown)
        assert f'alt="map by legrad of {name}, {chance}, strongest {place}"' in built
        wrong = ' class="wrong"' if test.targets[row] != of else ""
        assert f"legrad for <b{wrong}>{name}</b>, {chance}" in built


def test_the_map_is_the_one_that_explain_draws(run):
    folder, test = run
    built = explained(run)
    images = thumbnails.load_thumbnails(folder)
    kept = saliency.load_explanations(folder)
    image = images[int(kept.rows[3])].image
    mixed = blend_map(image, kept.values[3], "positive", (4, 2), kept.artifact_mask[3], saliency.SALIENCY_SIDE)
    assert mixed.shape == (168, 168, 3) and thumbnails.to_data_uri(mixed) in built
    assert saliency.build_saliency_section(kept, test, images).hidden == 1


def test_the_page_is_whole_silent_about_nothing_and_the_same_every_time(run):
    built = explained(run)
    reader, outline = Balanced(), Outline()
    reader.feed(built)
    outline.feed(built)
    assert reader.open == [] and outline.silent == []
    own = re.sub(r"data:image/[a-z]+;base64,[^\"]+", "", built)
    assert not re.search(r"<script|<link|@import|url\(|https?://|//[a-z]|\bNone\b|\bnan\b", own)
    assert page.build_report(run[0]).read_text(encoding="utf-8") == built


def test_a_run_without_maps_has_no_such_section(run):
    assert "Where its answers come from" not in page.build_report(run[0]).read_text(encoding="utf-8")


def test_pictures_without_a_map_are_named_with_the_reason(run):
    folder, test = run
    none = maps(test, thumbnail_rows(folder))
    empty = {name: getattr(none, name)[:0] for name in ("rows", "targets", "values", "artifact_mask")}
    about = replace(ABOUT, line="", layer="", nothing=("a&b.png: it is zero everywhere.",))
    saliency.save_explanations(folder, replace(none, about=about, **empty))
    built = page.build_report(folder).read_text(encoding="utf-8")
    assert "No map: a&amp;b.png: it is zero everywhere." in built and '<div class="two">' not in built


def test_labels_and_numbers_say_what_is_the_case(tmp_path):
    test, valid = labels()
    stored(tmp_path, test, valid, Decisions(thresholds=(0.5, 0.5, 0.5)))
    saliency.save_explanations(tmp_path, maps(test, thumbnail_rows(tmp_path)))
    built = page.build_report(tmp_path).read_text(encoding="utf-8")
    assert built.count("legrad for <b") == 12
    assert "has <b>" in built and "has no <b>" in built and 'legrad for <b class="wrong">' in built
    truth = np.arange(40.0)
    numbers = test_regression_predictions.table(truth, truth + 0.25, ("age",))
    rows = image_selection.select_images(numbers, 6)
    blank = thumbnails.StoredThumbnail(np.zeros((8, 8, 1), np.uint8), 1.0)
    found = saliency.build_saliency_section(maps(numbers, rows), numbers, dict.fromkeys(rows.tolist(), blank))
    assert len(found.worst) == len(found.others) == 6
    row = int(rows[0])
    said = [(line.before, line.name, line.after, line.wrong) for line in found.worst[0].lines]
    assert said == [("is", f"{truth[row]:.4g}", "", False), ("legrad for", "age", f", {truth[row] + 0.25:.4g}", False)]


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [
        (0, 0, "at the upper left"),
        (1, 3, "at the middle right"),
        (2, 1, "at the lower middle"),
        (1, 1, "in the middle"),
    ],
)
def test_the_strongest_patch_is_told_in_words(row, column, words):
    values = np.zeros((3, 4) if column == 3 else (3, 3), np.float32)
    values[row, column] = 1
    assert saliency.describe_peak_location(values) == words


def test_the_scale_goes_from_nothing_to_the_strongest_colour():
    stops = saliency.css_gradient("positive").split(", ")
    assert len(stops) == saliency.GRADIENT_STOPS and stops[0].endswith("/ 0.00)") and stops[-1].endswith("/ 0.75)")
    assert saliency.css_gradient("signed").split(", ")[0].endswith("/ 0.75)")


def test_a_damaged_file_is_named_and_so_are_arrays_that_do_not_belong_together(run):
    folder, test = run
    path = folder / saliency.EXPLANATIONS_FILE
    path.write_bytes(b"nothing")
    with pytest.raises(DamagedFileError, match=r"explanations\.npz must hold the arrays about, rows, of, values"):
        page.build_report(folder)
    kept = maps(test, thumbnail_rows(folder))
    saliency.save_explanations(folder, kept)
    with np.load(path) as arrays:
        stored_arrays = dict(arrays)
    np.savez(path, **{**stored_arrays, "rows": kept.rows[:2]})
    with pytest.raises(DamagedFileError, match=r"Got rows \[2\], outputs \[12\], maps \[12, 2, 4\] and artefacts"):
        page.build_report(folder)


@pytest.mark.parametrize("reader", ["radiology", "inspection"])
def test_a_first_page_leads_to_the_maps_where_there_are_any(run, reader):
    link = '<a href="#maps">'
    assert link not in page.build_report(run[0], AudienceRequest(audience=reader)).read_text(encoding="utf-8")
    explained(run)
    built = page.build_report(run[0], AudienceRequest(audience=reader)).read_text(encoding="utf-8")
    outline = Outline()
    outline.feed(built)
    assert link in built and "maps" in outline.ids
