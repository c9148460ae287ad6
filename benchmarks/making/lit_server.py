"""The same endpoint by LitServe, in a module of its own because its processes import what they run."""

from pathlib import Path

import litserve
import torch
from fastapi import Request
from starlette.datastructures import UploadFile
from torch import Tensor

from .tutorial import Tutorial


class Api(litserve.LitAPI):
    """What LitServe asks for: set up, decode, predict, encode."""

    def __init__(self, model: Path, most: int):
        super().__init__(max_batch_size=most)
        self.folder = model

    def setup(self, device: str) -> None:
        """In the process of the model."""
        self.tutorial = Tutorial(self.folder)

    def decode_request(self, request: Request) -> Tensor:
        """[C, h, w]; LitServe reads the annotation, and then hands over the form of such a request."""
        upload = request["file"]
        assert isinstance(upload, UploadFile)
        return self.tutorial.decode_image(upload.file)

    def batch(self, inputs: list[Tensor]) -> Tensor:
        """[n, C, h, w]."""
        return torch.stack(inputs)

    def predict(self, x: Tensor) -> Tensor:
        """[n, K], or [K] of a lone picture."""
        return self.tutorial.chances(x) if x.ndim == 4 else self.tutorial.chances(x[None])[0]

    def encode_response(self, output: Tensor) -> dict[str, object]:
        """JSON."""
        return self.tutorial.answer(output)


def serve(model: Path, port: int, most: int) -> None:
    """Answer until a signal comes."""
    server = litserve.LitServer(Api(model, most), accelerator="cpu", timeout=60)
    server.run(port=port, log_level="error", generate_client_file=False)
