"""Which model answers, as one number: equal only where everything is that its answers depend on."""

from __future__ import annotations

import hashlib

from .predictor import Predictor


def identity_of(predictor: Predictor) -> str:
    """SHA-256 of the weights, of how pictures are read, and of what turns outputs into answers."""
    digest = hashlib.sha256()
    digest.update(_bytes((predictor.spec, predictor.classes, predictor.task, predictor.decided)))
    for member in predictor.members:
        digest.update(_bytes((member.spec, member.number_format, member.views, member.scaling, member.decided)))
        familiar = {} if member.familiar is None else member.familiar.tensors()
        for name, tensor in sorted({**member.model.state_dict(), **familiar}.items()):
            digest.update(_bytes((name, str(tensor.dtype), tuple(tensor.shape))))
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _bytes(values: tuple[object, ...]) -> bytes:
    return repr(values).encode("utf-8", "surrogatepass") + b"\0"
