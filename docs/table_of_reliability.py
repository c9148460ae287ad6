"""Write the table of docs/reliability.md: what a server must bear, E1 to E25, and the tests that say so in their names.

python docs/table_of_reliability.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from markers import fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
NAME = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
ID = re.compile(r"_e(\d+)(?=_)")
WHAT: Mapping[int, str] = {
    1: "a body that is announced too large is refused before it comes",
    2: "a body without a length is refused where it crosses the limit, and takes no memory beyond it",
    3: "lengths that lie or contradict themselves",
    4: "slow heads, slow bodies and idle connections are cut off, and health is as it was",
    5: "every kind of bad file gets its status, and no other",
    6: "64 clients at once: no error, full batches, bounded waiting",
    7: "1,000 at once: a bounded queue, 503 and 429 with the time to come again",
    8: "after the deadline 504, and the place is free",
    9: "who leaves the queue is never computed",
    10: "decoding processes have limits, and are replaced when they die; five deaths in a minute are told",
    11: "alive while the model is read, ready only after it answered as it must",
    12: "SIGTERM: not ready at once, everybody inside is answered, stuck uploads are cut, exit code 0",
    13: "a signal under load; a port in use, a port without permission, IPv6",
    14: "a model whose hash is wrong is not served (a server never reads a second model)",
    15: "odd paths, long paths, 1,000 headers, odd methods: 4xx",
    16: "names that clients send touch no file and no log",
    17: "nothing that is uploaded is written to a disk",
    18: "names with markup stay words; no foreign scripts, no CORS; a public server without a token says so",
    19: "tokens are compared in constant time, and stand in no log",
    20: "no NaN in JSON; a model that produces one is not ready any more",
    21: "metrics stay few, whatever is asked",
    22: "files, threads and memory stay as they are",
    23: "the answer is that of every other door, for every kind of file that is accepted",
    24: "no address is ever fetched",
    25: "noise on 20 paths kills nothing",
}
BESIDE: Mapping[int, tuple[str, ...]] = {
    9: ("tests/unit/serve/test_batching.py::test_who_has_left_while_waiting_is_never_computed",),
    18: ("tests/end_to_end/test_serve.py::test_a_server_for_everybody_without_a_token_says_so_once",),
    23: (
        "tests/end_to_end/test_doors.py::test_every_door_decides_alike",
        "tests/end_to_end/test_doors.py::test_every_kind_that_is_accepted_is_among_them_or_has_a_range_of_its_own",
        "tests/end_to_end/test_doors.py::test_whoever_reads_files_decides_alike_about_values_of_another_range",
    ),
}
"""Further tests, which prove more than one thing and bear no number."""


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "server", table())


def table() -> str:
    """One row a number: what is borne, and the tests in their files."""
    lines = ["| | what | tests |", "|---|---|---|"]
    for number, found in proofs().items():
        files: dict[str, list[str]] = {}
        for one in found:
            file, _, name = one.partition("::")
            files.setdefault(file, []).append(f"`{name}`")
        told = "; ".join(f"{file.removeprefix('tests/')}: {', '.join(names)}" for file, names in files.items())
        lines.append(f"| E{number} | {WHAT[number]} | {told} |")
    return "\n".join(lines)


def proofs() -> Mapping[int, list[str]]:
    """The tests of each number as FILE::NAME: those that bear it in their names, then those beside."""
    found: dict[int, list[str]] = {number: [] for number in WHAT}
    there = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in NAME.findall(path.read_text(encoding="utf-8")):
            there.add(f"{path.relative_to(ROOT).as_posix()}::{name}")
            if "serve" in path.as_posix() or path.name == "test_hostile_names.py":
                for number in ID.findall(name):
                    found[int(number)].append(f"{path.relative_to(ROOT).as_posix()}::{name}")
    for number, more in BESIDE.items():
        if gone := set(more) - there:
            raise SystemExit(f"There is no test {', '.join(sorted(gone))}. Say in BESIDE what it is called now.")
        found[number] += more
    return found


if __name__ == "__main__":
    main()
