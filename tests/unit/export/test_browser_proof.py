"""The comparison of a page's table with its model: what passes, what is told, and what is refused. No browser here."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest

from exportable import member, pictures
from vitrail.errors import DamagedFileError
from vitrail.export import browser_proof
from vitrail.export.browser_proof import BrowserAnswers, ProofFile, prove_page
from vitrail.export.verify import predict_with_model, preprocess_decoded

TASKS = [
    ("classification", "unsure"),
    ("classification", "positive"),
    ("multilabel", "labels"),
    ("regression", "nothing"),
]


def files_of(spec, exact: int = 8, others: int = 0) -> list[ProofFile]:
    made = []
    for place, values in enumerate(list(pictures(spec))[: exact + others]):
        file = io.BytesIO()
        np.save(file, values)
        made.append(ProofFile(f"{place:03}.npy", file.getvalue(), place < exact))
    return made


def answered(one, files, change=lambda table: table, refused=()):
    """The table that a page would save, after a change."""
    images = [np.load(io.BytesIO(file.data)) for file in files]
    table = predict_with_model(one, preprocess_decoded(images, one.spec))
    names = tuple(file.name for file in files)
    data = change(dataclasses.replace(table, paths=names, ids=names)).csv_bytes()
    lines = [line for line in data.decode().splitlines() if line.split(",")[0] not in refused]
    return BrowserAnswers(
        "".join(f"{line}\n" for line in lines).encode(), dict.fromkeys(refused, "no"), "Chromium 1", 2.0
    )


@pytest.fixture
def proving(monkeypatch):
    """Prove as if the browser had given these answers."""

    def prove(one, files, answers, precision="float32", force=False):
        monkeypatch.setattr(browser_proof, "answer_in_browser", lambda page, given: answers)
        return prove_page(Path("x.html"), one, files, precision, force)

    return prove


@pytest.mark.parametrize(("task", "decided"), TASKS)
def test_a_page_that_answers_as_its_model_is_proved(task, decided, proving):
    one = member(task=task, decided=decided)
    files = files_of(one.spec, 6, 2)
    proof = proving(one, files, answered(one, files))
    assert proof.exact.num_images == 6 and proof.exact.difference < 1e-6 and proof.exact.num_changed == 0
    assert proof.decoded.num_images == 2 and proof.rate == 4
    assert str(proof).startswith("proved in Chromium 1, 4 pictures per second: 6 pictures: scores differ by at most ")
    assert "; as the browser decodes JPEG and the like, 2 pictures: " in str(proof)


def test_scores_that_differ_are_refused_with_the_difference(proving):
    one = member()
    files = files_of(one.spec)

    def shift(table):
        moved = table.probabilities + np.float32([0.004, -0.004, 0])
        return dataclasses.replace(table, probabilities=moved, predicted=moved.argmax(1))

    with pytest.raises(DamagedFileError, match=r"differ by up to 0\.004 on 8 pictures, and 0\.001 is allowed\."):
        proving(one, files, answered(one, files, shift))


def test_a_decision_that_does_not_follow_from_the_page_s_scores_is_refused(proving):
    one = member()
    files = files_of(one.spec)
    with pytest.raises(DamagedFileError, match="decides otherwise than the run would from the same scores"):
        proving(one, files, answered(one, files, lambda t: dataclasses.replace(t, predicted=(t.indices + 1) % 3)))
    with pytest.raises(DamagedFileError, match="decides otherwise than the run would from the same scores"):
        proving(one, files, answered(one, files, lambda t: dataclasses.replace(t, decision="another")))


def test_a_page_of_a_kept_decision_names_it(proving):
    one = member(decided="unsure")
    kept = dataclasses.replace(one, decisions=dataclasses.replace(one.decisions, version="august"))
    files = files_of(kept.spec)
    assert proving(kept, files, answered(kept, files)).exact.num_changed == 0


def test_a_picture_that_the_page_refuses_is_named_unless_the_browser_decodes_it(proving):
    one = member()
    files = files_of(one.spec, 6, 2)
    proof = proving(one, files, answered(one, files, refused=["007.npy"]))
    assert proof.decoded.num_refused == 1 and str(proof).endswith(", 1 are not read there")
    with pytest.raises(DamagedFileError, match=r"does not answer 1 picture that the run answers, such as 002\.npy"):
        proving(one, files, answered(one, files, refused=["002.npy"]))


def test_a_table_without_a_picture_is_refused(proving):
    one = member()
    files = files_of(one.spec)
    with pytest.raises(DamagedFileError, match=r"table lacks 007\.npy"):
        proving(one, files, answered(one, files[:7]))


def test_a_page_of_fewer_bits_is_kept_by_its_decisions_or_by_force(proving):
    one = member()
    files = files_of(one.spec)

    def others(table):
        moved = table.probabilities[:, [1, 2, 0]]
        return dataclasses.replace(table, probabilities=moved, predicted=moved.argmax(1))

    answers = answered(one, files, others)
    with pytest.raises(DamagedFileError, match=r"In int8 the page decides 0\.00% of 8 pictures as float32"):
        proving(one, files, answers, "int8")
    assert proving(one, files, answers, "int8", force=True).exact.num_changed == 8


def test_what_a_proof_needs_is_named_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setattr(browser_proof, "CHROMIUM_NAMES", ("no-such-browser",))
    assert browser_proof.find_missing_tools().endswith("Chromium (apt-get install chromium)")
