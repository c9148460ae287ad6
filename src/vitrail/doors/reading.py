"""What a model's head reads of every picture of a source: the features behind suspects and unlike pictures."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import UsageError
from ..evaluate.metrics import require_finite
from ..evaluate.prediction_tables import concat_predictions
from ..evaluate.predictions import RegressionPredictions
from ..model.vit import ViT
from ..predict.predictor import Predictor, PredictorMember
from .evaluation import Counter, Labelled, answered_parts, rows_of


def features_of(
    predictor: Predictor, labelled: Labelled, skip_bad: bool = False, counted: Counter | None = None
) -> tuple[Float32[np.ndarray, "n D"], NDArray[np.int64]]:
    """What the model's head reads of each picture, and the rows of those that could be read.

    The source may be of another task, or have other classes, than the model.

    Raises:
        UsageError: the model is not a ViT of ours, or there are several.
        DataError: a picture cannot be read, unless `skip_bad`.
    """
    member = predictor.alone()
    if not isinstance(member.model, ViT):
        raise UsageError("Features are what a Vision Transformer's head reads. This model is none.")
    names = tuple(map(str, range(member.model.config.width)))
    own = PredictorMember(
        model=Read(member.model), spec=member.spec, classes=names, task="number", number_format=member.number_format
    )
    reader = Predictor([own], predictor.device)
    reader.spec = predictor.spec
    parts = (part for _, part in answered_parts(reader, labelled, skip_bad))
    read = concat_predictions(list(counted(parts, len(labelled.rows)) if counted else parts))
    assert isinstance(read, RegressionPredictions)
    require_finite(read.values)
    return read.values, rows_of(labelled, read)


class Read(nn.Module):
    """A model that answers with what its head reads of the last block."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.model.features(images, keep=("pooled",))["pooled"][..., -self.model.config.width :]
