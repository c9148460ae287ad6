"""A model behind HTTP as tutorials put it there."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image
from torch import Tensor

from vitrail.services.prediction import open_predictor


class Tutorial:
    """What tutorials do with one upload: Pillow, float32, one forward pass of the same network."""

    def __init__(self, model: Path):
        predictor = open_predictor(model)
        self.network, self.spec = predictor.single_member().model.eval(), predictor.spec

    def decode_image(self, file: BinaryIO) -> Tensor:
        """[C, h, w], from -1 to 1."""
        image = Image.open(file).convert("RGB" if self.spec.channels == 3 else "L")
        values = np.array(image.resize((self.spec.width, self.spec.height)), dtype=np.float32)
        values = values.reshape(self.spec.height, self.spec.width, self.spec.channels).transpose(2, 0, 1)
        return torch.from_numpy(values / 255 * 2 - 1)

    def chances(self, images: Tensor) -> Tensor:
        """[n, C, h, w] to [n, K]."""
        with torch.inference_mode():
            return self.network(images).softmax(-1)

    def answer(self, chances: Tensor) -> dict[str, object]:
        """[K] as JSON."""
        return {"label": int(chances.argmax()), "probabilities": chances.tolist()}


def naive(model: Path, port: int) -> None:
    """FastAPI as tutorials use it: every request in a thread of the framework."""
    tutorial, app = Tutorial(model), FastAPI()

    @app.post("/predict")
    def predict(file: UploadFile) -> dict[str, object]:
        return tutorial.answer(tutorial.chances(tutorial.decode_image(file.file)[None])[0])

    app.get("/health")(lambda: {"ready": True})
    uvicorn.run(app, port=port, log_level="error")
