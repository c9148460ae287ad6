"""The pages of labels and numbers: whole, escaped, and every figure where it belongs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from unit.evaluate import (
    test_multilabel_metrics,
    test_multilabel_predictions,
    test_regression_metrics,
    test_regression_predictions,
)
from unit.report.report_sample import facts_of, predictions_of
from unit.report.test_page import Balanced
from vitrail.evaluate import multilabel_metrics, regression_metrics
from vitrail.evaluate.predictions import MultilabelPredictions, RegressionPredictions
from vitrail.report import charts, image_selection, page, provenance, task_sections, thumbnails

NAN = float("nan")


def stored(folder: Path, answers: MultilabelPredictions | RegressionPredictions, k: int = 3) -> str:
    """The page of a folder that holds these answers, read from its files."""
    known = {**vars(facts_of(predictions_of())), "metrics": ()}
    if isinstance(answers, MultilabelPredictions):
        measured = {
            "task": "multilabel",
            "label_metrics": (multilabel_metrics.compute_multilabel_metrics(answers, samples=20),),
        }
    else:
        means = tuple(float(number) for number in range(len(answers.columns)))
        measured = {
            "task": "regression",
            "number_metrics": (regression_metrics.compute_regression_metrics(answers, means, samples=20),),
        }
    (folder / "predictions").mkdir()
    answers.write_csv(folder / "predictions" / "test.csv")
    provenance.write_facts(folder, provenance.ReportFacts(**{**known, **measured}))
    chosen = image_selection.select_images(answers, k)
    thumbnails.save_thumbnails(folder, np.zeros((len(chosen), 8, 8, 1), np.uint8), chosen, np.ones(len(chosen)))
    return page.build_report(folder).read_text(encoding="utf-8")


def whole(built: str) -> None:
    reader = Balanced()
    reader.feed(built)
    assert reader.open == [] and "{{" not in built and "{%" not in built
    assert not re.search(r"<script|<link|@import|url\(|https?://|//[a-z]|\son[a-z]+=|\bNone\b|\bnan\b", built)


def test_the_page_of_labels_says_how_well_each_is_told_and_which_are_too_rare(tmp_path):
    given = test_multilabel_metrics.drawn()
    built = stored(tmp_path, given)
    whole(built)
    found = multilabel_metrics.compute_multilabel_metrics(given, samples=20)
    assert f'<div class="figure">{found.auroc:.3f}</div>' in built
    assert f"the mean of 2 labels, on {found.n} held-out test pictures" in built
    for one in found.per_label:
        assert f'<td class="n">{one.auroc:.3f}</td>' in built and f">{one.auroc:.3f}</text>" in built
    assert 'rare <span class="soft small">too few</span>' in built and 'class="dot faint"' in built
    assert built.count("<img ") == 6 and "2 of 3<small>" in built


def test_labels_that_nobody_can_rank_have_a_page_too_and_names_are_escaped(tmp_path):
    given = test_multilabel_predictions.table([[1, NAN], [0, 1]], [[0.2, 0.9], [0.1, 0.7]], ("<b>a", "b & c"))
    built = stored(tmp_path, given)
    whole(built)
    assert "is the log loss on 2 held-out test pictures" in built and "No label has 10 known" in built
    assert "<b>a" not in built and "&lt;b&gt;a" in built and "b &amp; c" in built
    assert 'has <b class="wrong">&lt;b&gt;a</b>, predicted 20%' in built


def test_labels_that_are_not_known_are_called_so_below_a_picture(tmp_path):
    chances = [[0.9, 0.1], [0.1, 0.8], [0.2, 0.1]]
    built = stored(tmp_path, test_multilabel_predictions.table([[1, NAN], [0, NAN], [0, 0]], chances))
    lines = re.findall(r'<figcaption><span class="id">[^<]*</span><br>(.*?)</figcaption>', built)
    assert [" ".join(re.sub(r"<[^>]+>", " ", line).split()) for line in lines] == [
        "oedema 90% not known: nodule 10%",
        "none of the known labels , highest 10% not known: nodule 80%",
        "none of the labels , highest 20%",
    ]


def test_the_page_of_one_number_compares_it_with_a_constant(tmp_path):
    given = test_regression_predictions.table([1, 2, 3, 4, NAN], [1, 2, 3, 5, 5], ("age",))
    built = stored(tmp_path, given, k=2)
    whole(built)
    assert '<div class="figure">± 0.25</div>' in built and "Always saying 0, the mean" in built
    assert built.count('class="dot points"') == 2 * 4 and "is <b>4</b>, predicted 5" in built
    assert "charts single" in built and ">R²</dt><dd>0.800<small>" in built


def test_the_page_of_several_numbers_has_a_line_and_a_scatter_for_each(tmp_path):
    built = stored(tmp_path, test_regression_metrics.drawn())
    whole(built)
    assert built.count('<svg class="chart"') == 2 * 2 and "R², the mean of 2 columns" in built
    assert "<h3>age</h3>" in built and '<th scope="row">weight, kg</th>' in built and "weight, kg is <b>" in built


def test_the_same_files_give_the_same_page(tmp_path):
    built = stored(tmp_path, test_multilabel_metrics.drawn())
    assert page.build_report(tmp_path).read_text(encoding="utf-8") == built


def test_a_large_scatter_is_thinned_evenly():
    n = 5 * task_sections.MAX_SCATTER_POINTS
    given = test_regression_predictions.table(np.arange(n), np.arange(n), ("age",))
    assert task_sections.draw_scatter(given, 0).count("<circle") == task_sections.MAX_SCATTER_POINTS


def test_the_most_confidently_wrong_label_comes_first_then_pictures_with_none_wrong():
    targets = [[1, 0], [1, NAN], [0, 1], [NAN, NAN], [0, 0], [1, 1], [0, 0]]
    chances = [[0.4, 0.1], [0.6, 0.9], [0.1, 0.05], [0.9, 0.9], [0.1, 0.2], [0.9, 0.8], [0.9, 0.1]]
    given = test_multilabel_predictions.table(targets, chances)
    assert image_selection.select_images(given, 2).tolist() == [2, 6, 1, 4]
    assert image_selection.select_images(given, 9).tolist() == [2, 6, 0, 1, 4, 5]
    assert len(image_selection.select_images(test_multilabel_predictions.table(None, chances), 3)) == 0


def test_the_largest_errors_come_first_then_pictures_from_all_along_the_truth():
    targets = [[10], [0], [NAN], [5], [7], [2], [20]]
    given = test_regression_predictions.table(targets, [[10], [9], [0], [5], [6], [2], [14]], ("a",))
    assert image_selection.select_images(given, 2).tolist() == [1, 6, 5, 0]
    assert image_selection.select_images(given, 9).tolist() == [1, 6, 4, 0, 3, 5]
    assert len(image_selection.select_images(test_regression_predictions.table(None, targets, ("a",)), 3)) == 0


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_thumbnails_of_another_run_are_refused(kind, tmp_path):
    from vitrail.errors import UsageError

    given = test_multilabel_metrics.drawn(30) if kind == "labels" else test_regression_metrics.drawn(30)
    stored(tmp_path, given)
    thumbnails.save_thumbnails(tmp_path, np.zeros((1, 2, 2, 1), np.uint8), np.array([99]), np.ones(1))
    with pytest.raises(UsageError, match=r"below the 30 rows.*Got 99"):
        page.build_report(tmp_path)


def test_dots_stand_where_their_figures_are():
    rows = [charts.DotPlotRow("a very long name of a label", 1.0, (0.5, 1.0)), charts.DotPlotRow("b", 0.25, None)]
    drawn = charts.draw_dot_plot(rows, (0.0, 1.0), "Figures", guide=0.5)
    left, right = charts.DOT_LEFT, charts.DOT_WIDTH - charts.DOT_RIGHT
    assert f'cx="{right:.1f}"' in drawn and f'cx="{left + (right - left) / 4:.1f}"' in drawn
    assert f'x1="{(left + right) / 2:.1f}" x2="{right:.1f}"' in drawn and "a very long name of a l…" in drawn
    assert drawn.count('class="span"') == 1 and 'aria-label="Figures"' in drawn
