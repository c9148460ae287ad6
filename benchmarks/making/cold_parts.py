"""The parts of one cold `vitrail predict`, in the order of that verb, each with its CPU seconds; prints them as JSON.

python benchmarks/making/cold_parts.py BUNDLE PICTURE
"""

from __future__ import annotations

import time

STARTED = time.process_time()

import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import vitrail  # noqa: E402, F401 - before torch, as the verb does: it says how torch's threads wait


def main() -> None:
    """Do what the verb does, with a look at the clock after each part."""
    parts = {"interpreter": STARTED}
    last = time.process_time()

    def until_now(name: str) -> None:
        nonlocal last
        now = time.process_time()
        parts[name] = now - last
        last = now

    import torch

    until_now("import torch")
    import vitrail.cli.main
    import vitrail.evaluate.predictions
    import vitrail.predict.image_paths
    import vitrail.services.prediction
    import vitrail.services.progress

    until_now("import vitrail and the rest")
    assert torch and vitrail.cli.main
    predictor = vitrail.services.prediction.open_predictor(sys.argv[1], "cpu")
    until_now("reading the bundle")
    from vitrail.data.preprocess import preprocess_image

    image = preprocess_image(Path(sys.argv[2]), predictor.spec)
    until_now("decoding and resizing")
    predictor.members[0].compute_outputs(image[None])
    until_now("forward")
    print(json.dumps(parts))


if __name__ == "__main__":
    main()
