"""A process of its own that opens files and says what that cost: `python limits.py FILE ...`, a line of JSON for each.

Every file is opened in a fresh child, so that each has its own peak of memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from memory import peak
from vitrail.data.decoding.decode import parse_image
from vitrail.errors import DataError
from vitrail.spec import ImageSpec


def cost(path: Path) -> dict[str, object]:
    """Processor seconds (the best of three) and further memory in MiB that refusing or reading the file takes."""
    data = path.read_bytes()
    before, seconds, says = peak(reset=True), [], ""
    for _ in range(3):
        start = time.process_time()
        try:
            parse_image(data, ImageSpec())
        except DataError as error:
            says = str(error)
        seconds.append(time.process_time() - start)
    return {"name": path.name, "seconds": min(seconds), "mebibytes": peak() - before, "says": says}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            print(json.dumps(cost(Path(name))), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
