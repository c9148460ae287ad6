"""The page: self-contained, escaped, and every number where it belongs."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from unit.report.report_sample import facts_of, predictions_of, run_folder
from vitrail.errors import UsageError
from vitrail.report import page, provenance, task_sections, thumbnails


@pytest.fixture
def built(tmp_path) -> str:
    return page.build_report(run_folder(tmp_path)).read_text(encoding="utf-8")


class Balanced(HTMLParser):
    """Fails when a tag is closed that was not open."""

    EMPTY = ("meta", "img", "br", "link", "line", "circle", "polyline", "text")

    def __init__(self):
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def test_the_page_is_whole(built):
    reader = Balanced()
    reader.feed(built)
    assert reader.open == []
    assert "{{" not in built and "{%" not in built


def test_nothing_is_loaded_from_outside_and_nothing_runs(built):
    assert not re.search(r"<script|<link|@import|url\(|https?://|//[a-z]", built)
    assert not re.search(r"\son[a-z]+=", built)
    assert all(uri.startswith("data:image/png;base64,") for uri in re.findall(r'src="([^"]*)"', built))


def test_the_first_screen_says_what_limits_the_figures(tmp_path):
    folder = run_folder(tmp_path)
    warnings = ("2 pictures of test are also in train.", "Probabilities are not calibrated.")
    provenance.write_facts(folder, dataclasses.replace(provenance.read_facts(folder), warnings=warnings))
    built = page.build_report(folder).read_text(encoding="utf-8")
    places = [built.index(f"<li>{text}</li>") for text in warnings]
    assert places == sorted(places) and places[-1] < built.index('<div class="figure">')


def test_names_of_pictures_are_printed_and_in_no_tooltip(built):
    assert '<figcaption><span class="id">' in built and "<figure title" not in built
    assert "pictures/1.png" not in built, "ids are the names"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('source = "/home/ada/my films/flowers"', 'source = "…/flowers"'),
        ("vitrail train --plan /srv/runs/a/plan.toml", "vitrail train --plan …/plan.toml"),
        ("runs/a/plan.toml and hf:me/x, https://example.org/a/b, 1/2", None),
        ("(/data/x/y.csv)", "(…/y.csv)"),
    ],
)
def test_no_folder_of_a_machine_is_on_the_page(text, shown):
    assert page.hide_folders(text) == (text if shown is None else shown)


def test_plan_command_and_start_are_shown_without_their_folders(tmp_path):
    folder = run_folder(tmp_path)
    facts = dataclasses.replace(
        provenance.read_facts(folder), plan='source = "/home/ada/zoo"', command="vitrail train --plan /home/ada/p.toml",
        start="/home/ada/weights.pth", notes=("Read /home/ada/zoo.csv.",), warnings=("See /home/ada/zoo/1.png.",),
    )  # fmt: skip
    provenance.write_facts(folder, facts)
    built = page.build_report(folder).read_text(encoding="utf-8")
    assert "/home" not in built and "…/zoo" in built and "vitrail train --plan RUN/plan.toml" in built


def test_the_headline_is_the_accuracy_of_the_held_out_split_with_its_interval(built):
    metrics = facts_of(predictions_of()).metrics[0]
    assert f'<div class="figure">{page.format_percent(metrics.accuracy)}</div>' in built
    low, high = metrics.accuracy_interval
    assert f"between {page.format_percent(low)} and {page.format_percent(high)}" in built
    assert "of 40 held-out test pictures" in built


def test_names_are_escaped(built):
    assert "<b>bold" not in built
    assert "dog &amp; &lt;b&gt;bold" in built
    assert "Three &lt;animals&gt;" in built


def test_facts_stand_on_the_page(built):
    for text in ("9 min 58 s", "1,234,567 parameters", "128,000 pictures shown", "vitrail train --plan RUN/plan.toml"):
        assert text in built
    for text in ("812 images/s were measured", "2.13.0", "Two pictures were skipped.", "asked for", "recipe.steps"):
        assert text in built


def test_every_setting_stands_with_its_value_and_its_reason(tmp_path):
    plan = 'model_name = "vit"\n[recipe]\nsteps = 12000\nnesterov = true\nlr = 0.5\nnone = ""\nsizes = [3, 4]\n'
    names = ("model_name", "recipe.steps", "recipe.nesterov", "recipe.lr", "recipe.none", "recipe.sizes", "x.gone")
    folder = run_folder(tmp_path)
    reasons = provenance.to_entries({name: f"why {name}" for name in names})
    provenance.write_facts(folder, dataclasses.replace(provenance.read_facts(folder), plan=plan, reasons=reasons))
    built = page.build_report(folder).read_text(encoding="utf-8")
    said = re.findall(r"<code>([^<]*)</code></th><td>([^<]*)</td><td>why \1<", built)
    assert said == list(zip(names, ("vit", "12,000", "true", "0.5", "\u2013", "3 x 4", "\u2013"), strict=True))


def test_of_few_pictures_the_calibration_error_is_unknown_and_the_rest_has_intervals(tmp_path):
    built = page.build_report(run_folder(tmp_path)).read_text(encoding="utf-8")
    assert "Confidence calibration error</dt><dd>–<small>it takes 100 pictures to show one</small></dd>" in built
    number = r"([-+][\d.]+)&#8239;%"
    found = re.search(rf"in the large</dt><dd>{number}<small>{number} to {number}", built)
    assert found is not None and float(found[2]) < float(found[1]) < float(found[3])
    assert "Intervals" in built and "Confidence calibration slope" in built


def test_the_sheet_of_what_the_model_sees_is_named_where_it_is_there(tmp_path):
    folder = run_folder(tmp_path)
    assert page.CONTACT_SHEET_FILE not in page.build_report(folder).read_text(encoding="utf-8")
    (folder / page.CONTACT_SHEET_FILE).parent.mkdir()
    (folder / page.CONTACT_SHEET_FILE).touch()
    assert f"<code>{page.CONTACT_SHEET_FILE}</code> shows some" in page.build_report(folder).read_text(encoding="utf-8")


def test_mistakes_and_right_answers_are_shown_with_their_confidence(built):
    predictions = predictions_of()
    chosen = thumbnails.select_class_images(predictions, 3)
    assert built.count("<img ") == len(chosen) == 6
    assert f"at {page.format_percent(float(predictions.confidences[chosen[0]]))}" in built


def test_a_run_without_history_thumbnails_or_stored_metrics_has_a_page_too(tmp_path):
    folder = run_folder(tmp_path, "val")
    (folder / "metrics.jsonl").unlink()
    (folder / thumbnails.THUMBNAILS_FILE).unlink()
    known = provenance.read_facts(folder)
    provenance.write_facts(folder, provenance.ReportFacts(**{**vars(known), "metrics": (), "notes": (), "reasons": ()}))
    built = page.build_report(folder).read_text(encoding="utf-8")
    assert "of 40 validation pictures" in built
    assert "How it learned" not in built and "mistakes</h2>" not in built


def test_many_classes_get_a_list_of_confusions_and_no_matrix(tmp_path):
    from vitrail.evaluate.predictions import ClassificationPredictions

    K = task_sections.MAX_MATRIX_CLASSES + 1
    n = 3 * K
    generator = np.random.default_rng(0)
    many = ClassificationPredictions(
        paths=("",) * n,
        ids=tuple(map(str, range(n))),
        split="test",
        targets=np.arange(n) % K,
        probabilities=generator.dirichlet(np.ones(K), n),
        classes=tuple(f"c{k}" for k in range(K)),
    )
    built = page.render_report(facts_of(many), many, tmp_path)
    assert 'class="matrix"' not in built
    assert "Most frequent mistakes" in built


def test_confusions_are_the_largest_off_the_diagonal():
    metrics = facts_of(predictions_of()).metrics[0]
    found = task_sections.find_largest_confusions(metrics, 2)
    matrix = np.array(metrics.confusion)
    np.fill_diagonal(matrix, 0)
    assert found[0].n == matrix.max()
    assert found[0].target != found[0].predicted


def test_a_perfect_model_says_so(tmp_path):
    from dataclasses import replace

    given = predictions_of()
    perfect = replace(given, probabilities=np.eye(3)[given.targets])
    assert "Not one mistake among the 40 held-out test pictures." in page.render_report(
        facts_of(perfect), perfect, tmp_path
    )


def test_missing_predictions_and_thumbnails_of_another_run_are_named(tmp_path):
    folder = run_folder(tmp_path)
    thumbnails.save_thumbnails(folder, np.zeros((1, 2, 2, 1), np.uint8), np.array([99]), np.ones(1))
    with pytest.raises(UsageError, match=r"below the 40 rows.*Got 99"):
        page.build_report(folder)
    (folder / "predictions" / "test.csv").unlink()
    with pytest.raises(UsageError, match=r"speaks of the test split and needs .*test\.csv"):
        page.build_report(folder)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3.14, "3.1 s"), (42.0, "42 s"), (598.4, "9 min 58 s"), (12010.0, "3 h 20 min"), (59.7, "1 min 0 s")],
)
def test_durations_are_said_as_people_do(seconds, words):
    assert page.format_duration(seconds) == words


def test_shares_have_a_narrow_space_and_unknown_ones_a_dash():
    assert page.format_percent(0.5) == "50.0\u202f%"
    assert page.format_percent(None) == "–"


def test_no_flag_is_broken_at_the_end_of_a_line_and_text_stays_text():
    assert page.keep_flags_whole("--folds 5, or <b> & -- a--b") == (
        '<span class="flag">--folds</span> 5, or &lt;b&gt; &amp; -- a--b'
    )
