"""What is to be learnt, inferred from cells, always with a reason; and what each wrong cell is called."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.labels.tasks import infer_task
from vitrail.data.settings import DataSettings
from vitrail.errors import DataError

NAN = np.nan


def where(row: int) -> str:
    return f"films.csv, line {row + 2}"


def answers(*columns: list[object], **said: object):
    return infer_task({"abcdefgh"[place]: cells for place, cells in enumerate(columns)}, DataSettings(**said), where)


def of(name: str, cells: list[object], **said: object):
    return infer_task({name: cells}, DataSettings(**said), where)


def test_words_are_classes_in_natural_order_and_the_reason_counts_them():
    found = of("label", ["type 10", "type 2", " type 1 ", "type 2"])
    assert (found.task, found.classes) == ("classification", ("type 1", "type 2", "type 10"))
    assert found.targets.dtype == np.int64 and found.targets.tolist() == [2, 1, 0, 1]
    assert found.reason == "Column 'label' holds 3 different words, so a picture has one of 3 classes."
    assert found.kept_rows is None and found.notes == ()


def test_D10_words_that_look_like_something_else_stay_the_words_they_are():
    cells = ["NA", "None", "null", "01", "1.0", "TRUE", "1", "nan", "1e5", "=cmd()"]
    found = of("label", cells)
    assert found.task == "classification" and set(found.classes) == set(cells)
    assert [found.classes[number] for number in found.targets] == cells


@pytest.mark.parametrize(
    ("cells", "classes", "note"),
    [
        (["1", "1.0", "2", "1"], ("1", "2"), "'1' (2) and '1.0' (1)"),
        (["01", "1", "1.0", "01", "02"], ("01", "02"), "'01' (2) and '1' (1) and '1.0' (1)"),
        (["-1.0", "-2", "-01", "0", "-0"], ("0", "-1.0", "-2"), "'-1.0' (1) and '-01' (1), '0' (1) and '-0' (1)"),
        ([1, 1.0, "1", 2], ("1", "2"), "'1' (2) and '1.0' (1)"),
        (["12345678901234567890", "12345678901234567891"] * 2, ("12345678901234567890", "12345678901234567891"), ""),
        (["1", "1.0", "one"], ("1", "1.0", "one"), ""),  # no numbers throughout: the check warns
        (["1e2", "100"], ("1e2", "100"), ""),
    ],
)
def test_numbers_of_equal_value_are_one_class_in_a_column_of_nothing_else(cells, classes, note):
    found = of("label", cells, task="classification")
    assert found.classes == classes
    assert note in "".join(found.notes) and bool(note) == ("are one class" in "".join(found.notes))


def test_D10_bools_are_words():
    assert of("label", [True, False, True]).classes == ("False", "True")


@pytest.mark.parametrize("empty", ["", "  ", None, float("nan")])
def test_D11_a_row_without_its_class_is_named_by_line(empty):
    with pytest.raises(DataError, match=r"films\.csv, line 3: 'label' is empty, in 2 rows in all.*--data.uncertain ig"):
        of("label", ["a", empty, "b", empty])
    found = of("label", ["a", empty, "b", empty], uncertain="ignore")
    assert found.kept_rows is not None and found.kept_rows.tolist() == [0, 2] and found.targets.tolist() == [0, 1]
    assert found.notes == ("Left out 2 rows whose 'label' is empty or -1 (--data.uncertain ignore).",)


def test_D11_a_minus_one_among_class_numbers_is_asked_about():
    with pytest.raises(DataError, match=r"line 4: 'label' is '-1', in 1 row in all.*--data.uncertain ignore"):
        of("label", ["0", "2", "-1", "1"])
    with pytest.raises(DataError, match=r"line 4: 'label' is '-1'.*\(ignore leaves its rows out\)"):
        of("label", ["0", "2", "-1", "1"], uncertain="zero")
    assert of("label", ["0", "2", "-1", "1"], uncertain="ignore").targets.tolist() == [0, 2, 1]
    assert of("label", ["0", "-1", "1"], uncertain="one").targets.tolist() == [0, 1, 1]
    assert of("label", ["-2", "-1", "0", "1", "2"]).classes == ("0", "1", "2", "-1", "-2")


def test_words_that_differ_only_in_case_or_spacing_are_refused_with_both_lines():
    with pytest.raises(DataError, match=r"holds 'cat' \(films\.csv, line 2\) and 'Cat' \(films\.csv, line 4\)"):
        of("label", ["cat", "dog", "Cat"])
    assert of("label", ["caf\u00e9", "cafe\u0301", "tea"]).classes == ("caf\u00e9", "tea")


def test_D7_one_class_can_be_measured_and_a_class_for_each_picture_is_noted():
    assert of("label", ["cat", "cat"]).classes == ("cat",)  # a training refuses it, see train/dataset.py
    found = of("label", [f"w{row}" for row in range(30)])
    assert found.notes == ("Column 'label' has 30 classes for 30 pictures, so most have only one.",)


@pytest.mark.parametrize(("mark", "name"), [("|", "|"), (";", ";"), (",", ",")])
def test_words_joined_in_a_cell_are_labels(mark, name):
    found = of("finding", [f"Mass{mark}Edema", "Mass", f"Edema {mark} Hernia", "Hernia"])
    assert (found.task, found.classes) == ("multilabel", ("Edema", "Hernia", "Mass"))
    assert found.targets.dtype == np.float32
    assert found.targets.tolist() == [[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 1, 0]]
    assert found.reason == f"Column 'finding' holds 3 words joined by {name}, so a picture may have several: labels."


def test_commas_inside_names_are_no_separators():
    found = of("label", ["tench, Tinca tinca", "goldfish, Carassius auratus", "tench, Tinca tinca"])
    assert found.task == "classification" and found.classes == ("goldfish, Carassius auratus", "tench, Tinca tinca")


def test_empty_cells_of_joined_labels_are_unknown_and_no_finding_is_none_of_them():
    found = of("finding", ["Mass|Edema", "", "No Finding", "Edema"])
    np.testing.assert_array_equal(found.targets, np.array([[1, 1], [NAN, NAN], [0, 0], [1, 0]], np.float32))
    assert "'No Finding' in column 'finding' was read as none of the labels" in found.notes[0]
    assert found.notes[1].startswith("1 row has an empty 'finding'")


def test_lists_of_words_are_labels_and_an_empty_list_is_none_of_them():
    found = of("tags", [["b", "a"], [], ["a"], None])
    np.testing.assert_array_equal(found.targets, np.array([[1, 1], [0, 0], [1, 0], [NAN, NAN]], np.float32))
    assert found.reason.startswith("Column 'tags' holds lists of words")


def test_columns_of_zeros_and_ones_are_labels_and_blanks_are_unknown():
    found = answers(["1", "0.0", "TRUE", ""], ["1.0", "0", "1", "na"])
    assert (found.task, found.classes) == ("multilabel", ("a", "b"))
    np.testing.assert_array_equal(found.targets, np.array([[1, 1], [0, 0], [1, 1], [NAN, NAN]], np.float32))
    assert found.reason == "Columns 'a', 'b' hold zeros and ones, so a picture may have several: labels."
    assert found.notes == ("2 of 8 labels are empty: they are not known and count neither way.",)


@pytest.mark.parametrize(("policy", "value"), [("ignore", NAN), ("zero", 0.0), ("one", 1.0)])
@pytest.mark.parametrize("word", ["-1", "-1.0", "u", "Uncertain", -1])
def test_D11_an_uncertain_label_is_asked_about_and_then_read_as_told(word, policy, value):
    with pytest.raises(DataError, match=r"films\.csv, line 3: 'b' is .*uncertain\. Say what to make.*--data.uncertain"):
        answers(["1", "0", "0"], ["1", word, "0"])
    found = answers(["1", "0", "0"], ["1", word, "0"], uncertain=policy)
    np.testing.assert_array_equal(found.targets[:, 1], np.array([1, value, 0], np.float32))
    assert found.notes[0].startswith("1 uncertain label was read as")


def test_D11_a_two_in_a_column_of_zeros_and_ones_is_named_by_line():
    a, b, c = (["0", "1"] * 10 for _ in "abc")
    b[15] = "2"
    with pytest.raises(
        DataError, match=r"films\.csv, line 17: 'b' is '2', expected 0, 1 or nothing.*--task regression"
    ):
        answers(a, b, c)
    with pytest.raises(DataError, match=r"films\.csv, line 3: 'a' is 'maybe', expected 0, 1 or nothing"):
        answers(["0", "maybe"], ["1", "1"], task="multilabel")


def test_a_single_one_in_each_row_makes_classes_with_the_reason():
    found = answers(["1", "0", "0"], ["0", "1", "0"], ["0", "0", "1"])
    assert (found.task, found.classes, found.targets.tolist()) == ("classification", ("a", "b", "c"), [0, 1, 2])
    assert "hold a single one in each row" in found.reason and found.notes == ()
    assert answers(["1", "0"], ["0", "1"], task="multilabel").targets.tolist() == [[1, 0], [0, 1]]
    with pytest.raises(DataError, match=r"line 3: 2 of the 2 classes 'a', 'b' are marked 1, expected exactly one; 1 s"):
        answers(["1", "1"], ["0", "1"], task="classification")


def test_D11_probabilities_that_sum_to_one_are_soft_classes():
    found = answers(["0.25", "1"], ["0.75", "0"])
    assert (found.task, found.targets.dtype) == ("classification", np.float32)
    np.testing.assert_allclose(found.targets, [[0.25, 0.75], [1, 0]])
    assert found.reason == "Columns 'a', 'b' sum to 1 in each row, so they are probabilities of 2 classes."
    rounded = answers(["0.33", "0.5"], ["0.33", "0.5"], ["0.33", "0"])
    np.testing.assert_allclose(rounded.targets.sum(1), 1, atol=1e-6)


def test_D11_a_row_of_probabilities_that_does_not_sum_to_one_is_named():
    a, b = ["0.4"] * 20, ["0.6"] * 20
    b[15] = "0.3"
    with pytest.raises(DataError, match=r"line 17: the probabilities are 0\.4, 0\.3 and sum to 0\.7.*1 such row"):
        answers(a, b)


@pytest.mark.parametrize("cells", [["0.5", "1", "2.25"], ["0,5", "1", "2,25"], [0.5, 1, 2.25]])
def test_numbers_with_decimals_are_numbers(cells):
    found = of("label", cells)
    assert (found.task, found.classes, found.targets.tolist()) == ("regression", ("label",), [[0.5], [1], [2.25]])
    assert "holds numbers with decimals (3 different values from 0.5 to 2.25)" in found.reason


def test_whole_numbers_are_classes_in_a_label_column_and_numbers_where_there_are_many():
    numbers = [str(number) for number in range(100)] * 3
    found = of("label", numbers)
    assert (found.task, len(found.classes)) == ("classification", 100) and found.classes[:3] == ("0", "1", "2")
    assert found.reason.endswith(
        "so a picture has one of 100 classes; --task regression would predict them as numbers."
    )
    assert of("cells counted", numbers).task == "regression"
    assert of("label", numbers, task="regression").targets.shape == (300, 1)
    assert of("cells counted", numbers, task="classification").task == "classification"
    assert of("stars", ["1", "5", "3", "1"]).task == "classification"
    assert of("label", [str(7 * number) for number in range(100)]).task == "regression"  # each its own, with gaps


def test_numbers_that_are_not_known_are_masked_and_words_among_them_are_named():
    found = answers(["0.5", "", "NaN"], ["3", "4.5", "7"])
    np.testing.assert_array_equal(found.targets, np.array([[0.5, 3], [NAN, 4.5], [NAN, 7]], np.float32))
    assert found.task == "regression" and found.notes == (
        "2 of 6 numbers are empty or 'NaN': they are not known and masked.",
    )
    with pytest.raises(DataError, match=r"films\.csv, line 4: 'x' is 'tall', expected a finite number or nothing"):
        of("x", ["1", "2", "tall"], task="regression")
    with pytest.raises(DataError, match=r"'x' is 'inf'"):
        of("x", ["1", "inf"], task="regression")
    with pytest.raises(DataError, match=r"Column 'x' .* holds no numbers at all"):
        of("x", ["", ""], task="regression")


def test_several_columns_of_words_fit_no_task():
    with pytest.raises(
        DataError, match=r"'a' holds words such as 'cat'\. Name one column of words with --data.targets"
    ):
        answers(["cat", "dog"], ["1", "0"])


def test_no_column_and_no_row_are_refused():
    for columns in ({}, {"label": []}):
        with pytest.raises(DataError, match="There are no labels"):
            infer_task(columns, DataSettings(), where)


def test_a_person_may_say_labels_where_spaces_part_them_or_where_each_has_one():
    assert of("tags", ["clear road", "clear", "haze"], task="multilabel").classes == ("clear", "haze", "road")
    assert of("tags", ["a", "b"], task="multilabel").targets.tolist() == [[1, 0], [0, 1]]
    assert of("ill", ["1", "0", ""], task="multilabel").targets.shape == (3, 1)
    assert of("tags", ["a|b", "a"], task="classification").classes == ("a", "a|b")
    assert of("tags", ["a|b", "a"], task="classification").reason == "As --task classification says."


def test_a_column_of_captions_is_not_read_as_labels():
    captions = [f"w{row}|w{row + 1}" for row in range(10_001)]
    with pytest.raises(DataError, match=r"'text' holds 10,002 different words, .* Is it a column of captions\?"):
        of("text", captions)


def filler(count: int) -> list[object]:
    return [f"{10 + number * 0.37:.2f}" for number in range(count)]


@pytest.mark.parametrize(
    "word", ["#N/A", "#DIV/0!", "#NAME?", "#NV", "?", "n/a", "NULL", "-nan", "<NA>", "1.#QNAN", "  ", None]
)
def test_a_missing_value_among_numbers_is_unknown_however_it_is_spelt(word):
    found = of("thickness", [*filler(40), word])
    assert found.task == "regression" and np.isnan(found.targets[40, 0])
    spelt = f" or {word!r}" if word and word.strip() else ""
    assert found.notes == (f"1 of 41 numbers is empty{spelt}: they are not known and masked.",)


@pytest.mark.parametrize(
    "word", ["inf", "-Infinity", "<1.0", ">100", "\u22645", "~3", "tall", "1.2.3", "-", "12 cm", "3 - 5"]
)
def test_a_text_among_numbers_is_named_and_never_makes_classes_of_them(word):
    cells = [*filler(40), word, "x", word]
    with pytest.raises(
        DataError, match=r"line 42: 'thickness' is .*expected a finite number.*3 such rows in all.*--task classif"
    ) as raised:
        of("thickness", cells)
    assert repr(word) in str(raised.value) and "'x' (films.csv, line 43)" in str(raised.value)
    assert ("A limit such as" in str(raised.value)) == (word[0] in "<>\u2264~")
    assert of("thickness", cells, task="classification").task == "classification"


def test_words_among_class_numbers_are_classes_and_missing_values_are_asked_about():
    assert of("label", ["0", "1", "2", "other"] * 9).classes == ("0", "1", "2", "other")
    with pytest.raises(DataError, match=r"line 4: 'label' is '#N/A', in 1 row in all"):
        of("label", ["0", "1", "#N/A", "1"])
    assert of("label", ["0", "1", "#N/A", "1"], uncertain="ignore").targets.tolist() == [0, 1, 1]
    assert "has a class called '#N/A', as missing" in of("label", ["cat", "dog", "#N/A"]).notes[0]


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1,250.5", "1,250", "900"], [1250.5, 1250, 900]),
        (["1.250,5", "1.250", "900"], [1250.5, 1250, 900]),
        (["1,250,000", "990,000"], [1250000, 990000]),
        (["12,50,000", "1,250"], [1250000, 1250]),
        (["0,5", "1,250"], [0.5, 1.25]),
        (["1.250", "0.125"], [1.25, 0.125]),
        (["1.250", "2.375"], [1.25, 2.375]),
        (["1 250,5", "1\u00a0250", "1\u202f250"], [1250.5, 1250, 1250]),
        (["1'250.5", "1\u2019250"], [1250.5, 1250]),
        (["1_000", "2.5"], [1000, 2.5]),
        (["\u0661\u0662", "\u0661\u066b\u0665"], [12, 1.5]),
        (["\uff11\uff12", "1.5"], [12, 1.5]),
        (["\u22121.5", "+2"], [-1.5, 2]),
        (["1e3", "2,5e-1"], [1000, 0.25]),
        (["12.5%", "7 %"], [12.5, 7]),
        (["$1,250.50", "-$3", "$ 7"], [1250.5, -3, 7]),
        (["1.250,50 \u20ac", "3 \u20ac"], [1250.5, 3]),
        ([".5", "5."], [0.5, 5]),
        ([1, 2.5, "3"], [1, 2.5, 3]),
    ],
)
def test_numbers_are_read_by_the_convention_of_the_whole_column(cells, numbers):
    assert of("price", cells, task="regression").targets[:, 0].tolist() == numbers


def test_a_unit_is_left_out_with_a_note_and_another_unit_is_named():
    millimetres = [f"{3 + number / 10} mm" for number in range(30)]
    found = of("size", millimetres)
    assert (found.task, found.targets[5, 0]) == ("regression", 3.5)
    assert found.notes == ("'mm' stands beside each number of 'size' and was left out.",)
    with pytest.raises(DataError, match=r"line 32: 'size' is '4 cm', expected a finite number with 'mm' or nothing"):
        of("size", [*millimetres, "4 cm"])
    assert of("field", ["1.5T", "3T", "1.5T"]).classes == ("1.5T", "3T")


@pytest.mark.parametrize("cells", [["1,250", "3,641"], ["900", "1,011"], ["-1,250 kg", "2,000 kg"]])
def test_a_comma_that_may_part_thousands_or_decimals_is_asked_about(cells):
    with pytest.raises(
        DataError, match=r"a comma may part the thousands or be a decimal comma .*--data\.decimal point"
    ):
        of("price", cells, task="regression")
    point, comma = (of("price", cells, task="regression", decimal=mark).targets[-1, 0] for mark in ("point", "comma"))
    assert point == pytest.approx(1000 * comma)


@pytest.mark.parametrize(
    ("cells", "rows"),
    [
        (["['cat', 'dog']", "['dog']", "[]", ""], [["cat", "dog"], ["dog"], [], None]),
        (['["cat", "dog"]', '["dog"]'], [["cat", "dog"], ["dog"]]),
        (["['cat' 'dog']", "['it\\'s']"], [["cat", "dog"], ["it's"]]),
        (["array(['cat', 'dog'], dtype=object)", "array(['cat'])"], [["cat", "dog"], ["cat"]]),
        (["{'cat', 'dog'}", "set('cat')"], None),
        (["('cat', 'dog')", "('dog',)"], [["cat", "dog"], ["dog"]]),
        (["[cat, dog]", "[dog]"], [["cat", "dog"], ["dog"]]),
        (["[3, 17]", "[17]", "[]"], [["3", "17"], ["17"], []]),
        (["[ 3 17]", "[17]"], [["3", "17"], ["17"]]),
        (["['a, b', 'c']", "['c']"], [["a, b", "c"], ["c"]]),
        (["[1, 0, 0]", "[0, 1, 1]"], None),
        (["[1 0]", "[0 1]"], None),
        (["[0.1, 0.9]", "[0.5, 0.5]"], None),
        (["[[1, 2], [3, 4]]", "[[1, 2]]"], None),
        (["{'cat': 1}", "{'dog': 2}"], None),
        (['{"cat": 1}', '{"dog": 2}'], None),
        (["['a' 'b' ... 'c']", "['a']"], None),
        (["['cat', 'dog']", "cat"], None),
        ([["1", "0", "0"], ["0", "1", "0"]], None),  # JSON lists arrive as words
    ],
)
def test_lists_in_cells_are_labels_or_are_refused_and_never_classes_of_that_name(cells, rows):
    if rows is None:
        with pytest.raises(
            DataError, match=r"films\.csv, line [23]: 'tags' is .*(lists of words are|a row of numbers)"
        ):
            of("tags", cells)
        return
    found = of("tags", cells)
    assert found.task == "multilabel"
    for words, target in zip(rows, found.targets, strict=True):
        known = [name for name, value in zip(found.classes, target, strict=True) if value == 1]
        assert np.isnan(target).all() if words is None else sorted(known) == sorted(words)


def test_brackets_around_some_words_are_part_of_the_words():
    assert of("label", ["cat", "[unknown]", "(other)", "cat"]).classes == ("(other)", "[unknown]", "cat")


def test_words_that_differ_in_width_or_invisible_letters_are_refused():
    for other in ("\uff43at", "ca\u200bt", "cat\u00a0", "CAT"):
        if of("label", ["cat", "dog", "cat"]) and other.strip() != "cat":
            with pytest.raises(DataError, match=r"differ only in case, spacing or width"):
                of("label", ["cat", other, "dog"])
