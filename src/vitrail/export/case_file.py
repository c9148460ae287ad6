"""The answer of a case as an ONNX file: from the outputs of an exported model for its images to one prediction."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt
from torch import Tensor, nn
from torch.export import Dim

from ..errors import DamagedFileError
from ..evaluate.cases import CasePool
from ..evaluate.predictions import RegressionPredictions, decision_array
from ..predict import exported
from ..predict.onnx_predictor import open_session
from ..predict.predictor import Predictor, PredictorMember
from ..version import __version__
from .build import ONNX_OPSET, ExportedFile, check_onnx_installed, hash_model
from .module import ProbabilityHead, RegressionHead, probabilities_to_logits
from .verify import REDUCED_TOLERANCE, TOLERANCE, VerificationResult, predict_with_model

SHARES = "shares"
"""The output with the share of each image in the answer."""
CASE_KEY = f"{exported.METADATA_PREFIX}cases"
"""The key of what the file says of itself: task, classes, pool, and the SHA-256 of the weights of its model."""


class CaseModule(nn.Module):
    """`CasePool` as a module: logits [n, K], and for attention scores [n], of the n images of one case.

    Outputs: `probabilities` float32 [1, K] (of regression `values`), `decisions` (not of regression), `abstained` and
    `shares` float32 [n].
    """

    temperature: Tensor

    def __init__(self, member: PredictorMember, pool: CasePool):
        super().__init__()
        self.task, self.method = member.task, pool.method
        self.positive = member.classes.index(pool.decisions.positive) if pool.decisions.positive else None
        self.register_buffer("temperature", torch.tensor(pool.temperature or (1.0,), dtype=torch.float64))
        decided = replace(member, decisions=pool.decisions, feature_stats=None, case_pool=None)
        self.decision = RegressionHead(decided) if member.task == "regression" else ProbabilityHead(decided)
        names = (exported.VALUES,) if member.task == "regression" else (exported.PROBABILITIES, exported.DECISIONS)
        self.input_names = (exported.LOGITS, *([exported.CASE_SCORES] if pool.method == "attention" else []))
        self.output_names = (*names, exported.ABSTAINED, SHARES)

    def forward(self, logits: Float[Tensor, "n K"], scores: Float[Tensor, " n"] | None = None) -> tuple[Tensor, ...]:
        values = self._say(logits.double())  # [n, K]
        if scores is not None:
            weights = scores.double().softmax(0)[:, None].expand_as(values)
        elif self.method == "max":
            ranked = values if self.positive is None else values[:, self.positive, None].expand_as(values)
            largest = (ranked == ranked.amax(0, keepdim=True)).double()
            weights = largest / largest.sum(0, keepdim=True)
        else:
            weights = torch.ones_like(values) / torch.ones_like(values).sum(0, keepdim=True)
        parts = weights * values
        pooled = parts.sum(0, keepdim=True)  # [1, K]
        if self.task == "regression":
            numbers, _, abstained = self.decision(pooled, None)
            return numbers, abstained, weights.mean(1).float()
        probabilities, _, decisions, abstained = self.decision(probabilities_to_logits(pooled, self.task), None)
        answered = decisions if self.task == "classification" else probabilities.argmax(-1)  # [1]
        chosen = answered[:, None].expand(values.shape[0], 1)
        part, weight = parts.gather(1, chosen)[:, 0], weights.gather(1, chosen)[:, 0]
        total = part.sum()
        shares = torch.where(total > 0, part / total.clamp(min=torch.finfo(torch.float64).tiny), weight)
        return probabilities, decisions, abstained, shares.float()

    def _say(self, logits: Tensor) -> Tensor:
        """What each image says, as `cases.image_values`."""
        if self.task == "regression":
            return logits
        calibrated = logits / self.temperature
        said = calibrated.sigmoid() if self.task == "multilabel" else calibrated.softmax(-1)
        return said.float().double()


def write_case_file(member: PredictorMember, path: Path) -> None:
    """Write the pool of a model with its decisions of cases as ONNX.

    Raises:
        UsageError: packages are missing, by name.
    """
    check_onnx_installed()
    assert member.case_pool is not None
    module = CaseModule(member, member.case_pool).eval()
    inputs = (torch.zeros(3, len(member.classes)), torch.zeros(3))[: len(module.input_names)]
    images = Dim("images")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's advice is for its authors
        program = torch.onnx.export(
            module, inputs, input_names=list(module.input_names), output_names=list(module.output_names),
            dynamic_shapes=tuple({0: images} for _ in inputs), opset_version=ONNX_OPSET, dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None
    from onnxscript.ir.passes.common import ClearMetadataAndDocStringPass

    ClearMetadataAndDocStringPass()(program.model)  # source paths of this machine
    about = {
        "task": member.task, "classes": member.classes, "pool": member.case_pool.method,
        "sha256": hash_model(member.model), "version": __version__,
    }  # fmt: skip
    program.model.metadata_props[CASE_KEY] = json.dumps(about)
    program.save(path)


class CaseFile:
    """An opened file of `write_case_file`.

    Raises:
        DamagedFileError: ONNX Runtime refuses it.
    """

    def __init__(self, path: Path):
        self._session: Any = open_session(path, 1)
        self.input_names = tuple(one.name for one in self._session.get_inputs())
        self.output_names = tuple(one.name for one in self._session.get_outputs())

    def run(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The answer of a case, from the outputs of the model's own file for its images."""
        inputs = {name: outputs[name].astype(np.float32) for name in self.input_names}
        return dict(zip(self.output_names, self._session.run(None, inputs), strict=True))


def verify_case_file(
    path: Path, model_file: ExportedFile, member: PredictorMember, images: UInt[np.ndarray, "n H W C"]
) -> VerificationResult:
    """Compare cases of one to five images, answered by the two files, with the answers of the run.

    Raises:
        DamagedFileError: scores or shares differ by more than is allowed.
    """
    groups = np.repeat(np.arange(len(images)), 1 + np.arange(len(images)) % 5)[: len(images)]
    expected = Predictor([member]).add_cases(predict_with_model(member, images), groups)
    cases, file = expected.cases, CaseFile(path)
    assert cases is not None and expected.shares is not None
    is_regression = isinstance(cases, RegressionPredictions)
    wanted = cases.values if isinstance(cases, RegressionPredictions) else cases.probabilities
    scale = max(1.0, float(np.abs(wanted).max()))
    differences, changed = [0.0], 0
    for case in range(len(cases)):
        rows = np.flatnonzero(groups == case)
        answer = file.run(model_file.run(images[rows]))
        given = answer[exported.VALUES if is_regression else exported.PROBABILITIES][0]
        differences.append(float(np.abs(given - wanted[case]).max()) / scale)
        differences.append(float(np.abs(answer[SHARES] - expected.shares[rows]).max()))
        if not isinstance(cases, RegressionPredictions):
            changed += bool((answer[exported.DECISIONS][0] != decision_array(cases)[case]).any())
    allowed = TOLERANCE if model_file.metadata.number_format == "float32" else REDUCED_TOLERANCE
    if not max(differences) <= allowed:
        raise DamagedFileError(
            f"The exported file answers cases otherwise than the run: by up to {max(differences):.3g} on {len(cases)} "
            f"cases, and {allowed:g} is allowed. Nothing is kept; please report this model."
        )
    return VerificationResult(len(cases), max(differences), changed)
