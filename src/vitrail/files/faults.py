"""Places at which a test may kill the process as a power cut would: `VITRAIL_DIE_AT="renamed LATEST"`.

Without that variable reaching a place does nothing. A number after the name ("renamed LATEST 3") waits for the third
time. The places are the boundaries of everything that is written durably; `tests/end_to_end` dies at all of them.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "VITRAIL_DIE_AT"


def reach(place: str, name: str) -> None:
    """Die here, without another instruction of Python's, if the variable says so; `name` is what is being written."""
    asked = os.environ.get(VARIABLE)
    if asked is None:
        return
    words = asked.split()
    if words[:2] != [place, name]:
        return
    times = int(words[2]) if len(words) > 2 else 1
    if times > 1:
        os.environ[VARIABLE] = f"{place} {name} {times - 1}"
        return
    os.kill(os.getpid(), signal.SIGKILL)
