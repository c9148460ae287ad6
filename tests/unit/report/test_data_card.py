"""The data card and the model card: what was stored, in words."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from unit.evaluate import test_regression_predictions
from unit.report.reader_sample import CHECK, FINGERPRINT, labels, stored, two_classes, write
from unit.report.report_sample import facts_of, predictions_of, run_folder
from unit.report.test_first_pages import plain
from vitrail.errors import DamagedFileError
from vitrail.evaluate.decisions import Decisions
from vitrail.evaluate.task_metrics import compute_metrics
from vitrail.report import cards, page
from vitrail.report.cards import list_copy_warnings, performance_section
from vitrail.report.provenance import SplitCount

COUNTS = (SplitCount(split="train", n=80, origin="official"), SplitCount(split="test", n=40))


def test_the_report_says_what_the_pictures_are(tmp_path):
    test, valid, decided = two_classes()
    html = page.build_report(stored(tmp_path, test, valid, decided)).read_text()
    text = plain(html)
    for words in (
        "zoo 120 pictures, 1 of them cannot be used",
        "20 x 24 to 200 x 240 height x width in pixels",
        "118 PNG, 2 JPEG uint8",
        "Class train test cat 40 10 dog 20 9",
        "100 of them were looked at",
        "Noticed while opening them: 3 turned by EXIF.",
        "warning : 8 pictures of test are nearly the same as one in train.",
        "(8 pairs: 1.png = 2.png, 3.png = 3-again.png, 4.png = 4-again.png and 5 more, in check.json) Leave &lt;them",
        "to be known : 2 pictures are long. (a.png, b.png)",
        "Nothing else is known.",
        FINGERPRINT,
    ):
        assert words in text, words


def test_of_many_classes_the_rarest_are_counted(tmp_path):
    write(tmp_path / "check.json", {**CHECK, "class_counts": {"train": {f"c{k}": 100 - k for k in range(50)}}})
    figures = facts_of(predictions_of()).metrics[0]
    card = cards.read_data_card(tmp_path, facts_of(predictions_of()), figures)
    assert [name for name, _ in card.counts[:2]] == ["c49", "c48"] and card.left_out == 20


def test_how_copies_were_looked_for_is_said_also_where_none_was_found(tmp_path):
    known, (near, _) = facts_of(predictions_of()), CHECK["concerns"]

    def copies(*concerns: dict[str, object], **more: int) -> list[str]:
        write(tmp_path / "check.json", {**CHECK, "looked_at": 120, "concerns": list(concerns), **more})
        return cards.read_data_card(tmp_path, known, known.metrics[0]).copies

    how = "(resized, compressed or slightly cropped, by comparing each with all others) were looked for among"
    exact = "Exact copies (equal pixels, by a hash of each picture) were looked for among"
    assert copies(compared=120) == [
        f"{exact} 120 pictures: none was found.",
        f"Near copies {how} 120 pictures: none was found.",
    ]
    assert copies(near, compared=90)[1] == f"Near copies {how} 90 of 120 pictures: what was found is listed above."
    unfinished = {**near, "code": "near-copies-unfinished"}
    assert copies(unfinished, compared=120)[1].endswith("120 pictures, as far as there was time: none was found.")
    assert copies(near, compared=0, looked_at=100) == [
        f"{exact} 100 of 120 pictures: none was found; the near copies listed above differ in some pixels.",
        "Near copies were not looked for: no picture has 64 pixels on its shorter side.",
    ]


def test_several_folds_have_the_card_of_the_first_whose_splits_do_not_count(tmp_path):
    write(tmp_path / "fold-0" / "check.json", CHECK)
    known = facts_of(predictions_of())
    card = cards.read_data_card(tmp_path, known, known.metrics[0])
    assert card.splits == ["all"] and card.counts == [("cat", [50]), ("dog", [29])]
    assert [one.text for one in card.issues] == ["2 pictures are long."]


def test_a_run_without_a_check_says_so_and_a_damaged_one_is_named(tmp_path):
    folder = run_folder(tmp_path)
    assert "there is no check.json in the run folder" in page.build_report(folder).read_text()
    (folder / "check.json").write_text("{")
    with pytest.raises(DamagedFileError, match=r"check\.json must be JSON"):
        page.build_report(folder)
    (folder / "check.json").write_text("[]")
    with pytest.raises(DamagedFileError, match=r"check\.json must hold a JSON object\. Got a list"):
        page.build_report(folder)


def test_the_model_card_has_the_figures_of_the_report_with_their_intervals():
    test, _, decided = two_classes()
    figures = compute_metrics(test)
    text = performance_section(figures, test, decided, "zoo", COUNTS, FINGERPRINT)
    low, high = figures.accuracy_interval
    assert f"| Accuracy | {100 * figures.accuracy:.1f} % | {100 * low:.1f} % to {100 * high:.1f} % |" in text
    assert f"| AUROC | {figures.auroc:.4g} |" in text and f"| defect | {figures.per_class[0].n:,} |" in text
    assert "Measured on 1,000 test pictures that it has not learnt from of zoo; intervals" in text
    assert "Every picture is answered." in text and "| train | 80 | official |" in text and FINGERPRINT in text
    tables = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_the_model_card_names_copies_and_does_not_call_them_new():
    test, _, decided = two_classes()
    copies, limits = ["2 pictures of test are also in train (a.png = b.png)"], ["Probabilities are not calibrated."]
    text = performance_section(compute_metrics(test), test, decided, "zoo", COUNTS, FINGERPRINT, None, copies, limits)
    assert "not learnt from" not in text and "Measured on 1,000 test pictures of zoo; intervals" in text
    assert f"- **{copies[0]}**\n- **{limits[0]}**\n\n| Figure |" in text
    few = dataclasses.replace(compute_metrics(test), calibration_error=None)
    text = performance_section(few, test, decided, "zoo", COUNTS, FINGERPRINT)
    assert "| Confidence calibration error | unknown | takes 100 pictures |" in text


def test_copies_are_those_of_the_split_with_their_names(tmp_path):
    def concern(code, text, groups):
        return {"code": code, "text": text, "groups": groups, "pictures": []}

    concerns = [
        concern("exact-copies-in-train-and-test", "2 of test are also in train.", [["a", "b"], ["c", "d"]]),
        concern("near-copies-in-train-and-test", "1 of test is nearly one of train.", [["e", "f"]]),
        concern("exact-copies-in-train-and-val", "1 of val is also in train.", [["g", "h"]]),
        concern("exact-copies-in-train", "1 of train is there twice.", [["i", "j"]]),
    ]
    (tmp_path / "check.json").write_text(json.dumps({"concerns": concerns}))
    assert list_copy_warnings(tmp_path, "test") == [
        "2 of test are also in train. (2 pairs: a = b, c = d)", "1 of test is nearly one of train. (1 pair: e = f)",
    ]  # fmt: skip
    assert list_copy_warnings(tmp_path, "val") == ["1 of val is also in train. (1 pair: g = h)"]
    assert list_copy_warnings(tmp_path / "elsewhere", "test") == []


def test_the_model_card_says_what_is_left_unanswered_and_speaks_of_labels_and_numbers():
    test, _ = labels()
    figures = compute_metrics(test)
    text = performance_section(figures, test, Decisions(unlike=3.0), "zoo", COUNTS, FINGERPRINT)
    assert "of 400 pictures 0 `unlike`, 0 `unsure`" in text
    assert f"| AUROC, mean of 2 labels | {figures.auroc:.4g} |" in text and "| rare | " in text
    for n, shown in ((5, "| a\\|b | 5 | 0.2 |"), (8, "| a\\|b | 8 | 0.125 (")):
        given = test_regression_predictions.table(range(n), [*range(3), 4, *range(4, n)], ("a|b",))
        text = performance_section(compute_metrics(given), given, Decisions(), "zoo", COUNTS, FINGERPRINT)
        assert shown in text


def test_the_table_of_a_json_is_read_whole(tmp_path):
    from vitrail.report import provenance as tables

    assert tables.read_json_table(tmp_path / "none.json") is None
    (tmp_path / "a.json").write_text(json.dumps({"a": 1}))
    assert tables.read_json_table(tmp_path / "a.json") == {"a": 1}
