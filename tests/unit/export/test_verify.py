"""A file that answers otherwise is found out, and says by how much."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from exportable import member, pictures
from vitrail.errors import DamagedFileError
from vitrail.export.build import make_metadata
from vitrail.export.module import ExportModule
from vitrail.export.verify import VerificationResult, verify_file, verify_resizing


class Recorded:
    """The module as a file would be, with its outputs changed on the way; the sizes of the batches that were asked."""

    def __init__(self, one, change=lambda outputs: None, resize=False):
        self.answering, self.change, self.batches = ExportModule(one, resize), change, []

    def __call__(self, images):
        self.batches.append(len(images))
        with torch.inference_mode():
            found = self.answering(torch.from_numpy(np.ascontiguousarray(images)))
        outputs = {name: value.numpy().copy() for name, value in zip(self.answering.output_names, found, strict=True)}
        self.change(outputs)
        return outputs


def proof_of(one, change=lambda outputs: None, count=12):
    file = Recorded(one, change)
    return verify_file(file, make_metadata(file.answering, one), one, pictures(one.spec, count)), file


def test_one_and_five_at_a_time():
    proof, file = proof_of(member())
    assert file.batches == [1] * 10 + [5, 5, 2]
    assert proof.num_images == 12 and proof.difference < 2e-5 and proof.num_changed == 0
    assert str(proof).endswith("every decision is the same")


def shifted(outputs):
    outputs["probabilities"][3, 0] += 0.002


def nan(outputs):
    outputs["probabilities"][0, 0] = np.nan


def test_scores_that_differ_are_refused_with_the_difference():
    with pytest.raises(DamagedFileError, match=r"differ by up to 0\.002 on 12 pictures, and 0\.0001 is allowed"):
        proof_of(member(), lambda outputs: shifted(outputs) if len(outputs["probabilities"]) > 4 else None)


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(DamagedFileError, match="differ by up to inf"):
        proof_of(member(task="classification"), nan)


def test_a_file_is_compared_with_the_run_as_it_answers_and_not_with_a_copy_in_float32():
    """F2: a model that answers in bfloat16 is not what this float32 file computes."""
    one = member()
    fast = dataclasses.replace(one, settings=dataclasses.replace(one.settings, precision="bfloat16"))
    with pytest.raises(DamagedFileError, match="answers otherwise than the run"):
        proof_of(fast)


def other_class(outputs):
    outputs["decisions"][:] = (outputs["decisions"] + 1) % 3


def silent(outputs):
    outputs["abstained"][:] = 1


@pytest.mark.parametrize("change", [other_class, silent])
def test_decisions_that_do_not_follow_from_the_scores_are_refused(change):
    with pytest.raises(DamagedFileError, match="decides otherwise than the run would from the same scores"):
        proof_of(member(), change)


def test_numbers_are_compared_by_the_size_of_the_largest():
    one = member(task="regression")
    proof, _ = proof_of(one, lambda outputs: np.multiply(outputs["values"], 1.00002, out=outputs["values"]))
    assert 1e-6 < proof.difference < 1e-4
    with pytest.raises(DamagedFileError, match="differ by up to"):
        proof_of(one, lambda outputs: np.multiply(outputs["values"], 1.001, out=outputs["values"]))


def test_a_picture_on_a_threshold_is_counted_and_not_refused():
    one = member("mean, indexed", "multilabel", "labels")
    images = pictures(one.spec, 12)
    outputs = one.compute_outputs(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()).outputs
    chance = float(one.decisions.predict_proba("multilabel", outputs)[4, 0]) - 5e-6
    one = dataclasses.replace(one, decisions=dataclasses.replace(one.decisions, thresholds=(chance, 0.5, 0.5)))

    def a_little_less(outputs):
        outputs["probabilities"][:, 0] -= 1e-5
        outputs["decisions"][:, 0] = outputs["probabilities"][:, 0].astype(np.float64) >= chance

    proof, _ = proof_of(one, a_little_less)
    assert proof.num_changed == 1 and "1 closer than that to a threshold are decided otherwise" in str(proof)


def test_a_file_that_resizes_is_compared_on_pictures_as_they_are():
    one = member("axial rotary, RMSNorm")
    large = dataclasses.replace(one.spec, height=19, width=13)
    file = Recorded(one, resize=True)
    decoded = [*pictures(large, 4), *pictures(dataclasses.replace(one.spec, height=7, width=30), 3)]
    proof = verify_resizing(file, make_metadata(file.answering, one), one, decoded)
    assert proof.num_images == 7 and proof.difference < 0.01


def test_a_proof_in_words():
    assert str(VerificationResult(1200, 1.234e-6, 0)) == (
        "compared on 1,200 pictures: scores differ by at most 1.2e-06, every decision is the same"
    )
