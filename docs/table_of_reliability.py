"""Write the tables of docs/reliability.md: what is promised, and the tests that say so by name.

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
ID = re.compile(r"_([AFHVX]|e)(\d+)(?=_)")
WHAT: Mapping[str, str] = {
    "A1": "kill -9 at random moments, resumed until the end: the same bits of weights, moments, mean and table",
    "A2": "death at every boundary of a checkpoint: as A1, and a whole one is there at any time",
    "A3": "the same in the middle of an epoch with every kind of randomness and option on",
    "A4": "death in a validation: on from the newest checkpoint to the same bits; in the conclusion: only that again",
    "A5": "SIGTERM in a step, a wait, a save, or twice: one checkpoint, code 143, how to go on",
    "A6": "Ctrl-C once saves, twice ends at once",
    "A7": "SIGHUP saves and ends, SIGUSR1 saves and goes on; under SLURM it says how to requeue",
    "A8": "a decoder that runs out of memory ends the run saved (decoders are threads: none is a process to be killed)",
    "A9": "a damaged newest checkpoint is named and the one before it taken; leftovers go",
    "A10": "with all of them damaged the run ends with code 4 and never begins again behind one's back",
    "A11": "changes are listed, and refused where they break a meaning",
    "A12": "another number of workers, threads, another device: allowed, and it is told what that costs",
    "A13": "a finished run is not touched",
    "A14": "a tensor that is missing or renamed stops a resume by name",
    "A15": "the final figures are those of the bundle to the last digit",
    "A16": "the step decides which checkpoint is newest, and no clock",
    "A17": "written, flushed, renamed, the folder flushed, in this order",
    "A18": "an old checkpoint that cannot be deleted is told, and the training goes on",
    "A19": "a save in the background: there is none, a checkpoint is whole before the next step",
    "A20": "resumes of one step each are one run",
    "E1": "a body that is announced too large is refused before it comes",
    "E2": "a body without a length is refused where it crosses the limit, and takes no memory beyond it",
    "E3": "lengths that lie or contradict themselves",
    "E4": "slow heads, slow bodies and idle connections are cut off, and health is as it was",
    "E5": "every kind of bad file gets its status, and no other",
    "E6": "64 clients at once: no error, full batches, bounded waiting",
    "E7": "1,000 at once: a bounded queue, 503 and 429 with the time to come again",
    "E8": "after the deadline 504, and the place is free",
    "E9": "who leaves the queue is never computed",
    "E10": "decoding processes have limits, and are replaced when they die; five deaths in a minute are told",
    "E11": "alive while the model is read, ready only after it answered as it must",
    "E12": "SIGTERM: not ready at once, everybody inside is answered, stuck uploads are cut, exit code 0",
    "E13": "a signal under load; a port in use, a port without permission, IPv6",
    "E14": "a model whose hash is wrong is not served (a server never reads a second model)",
    "E15": "odd paths, long paths, 1,000 headers, odd methods: 4xx",
    "E16": "names that clients send touch no file and no log",
    "E17": "nothing that is uploaded is written to a disk",
    "E18": "names with markup stay words; no foreign scripts, no CORS; a public server without a token says so",
    "E19": "tokens are compared in constant time, and stand in no log",
    "E20": "no NaN in JSON; a model that produces one is not ready any more",
    "E21": "metrics stay few, whatever is asked",
    "E22": "files, threads and memory stay as they are",
    "E23": "the answer is that of every other door, for every kind of file that is accepted",
    "E24": "no address is ever fetched",
    "E25": "noise on 20 paths kills nothing",
    "F1": "a step that is not finite is not applied and is written down; three in a row end the run",
    "F2": "a jump of six deviations is skipped if asked for, at most once in a hundred",
    "F3": "after one NaN the next healthy step is applied",
    "F4": "numbers that are not finite when they are read are named by file",
    "F5": "a loss of one rank that is not finite makes all skip",
    "F6": "what overflows float16 is counted apart",
    "F7": "a loss that does not fall brings the three likeliest causes",
    "F8": "labels out of range, batches of one class, classes never seen: before the first step",
    "F9": "rates, decay and warm-up that make no sense are refused with the reason",
    "F10": "a full memory: the run is saved, and which batch fits is said",
    "H1": "a second run on the same folder is told who has it",
    "H2": "a reader always finds a whole checkpoint",
    "H3": "two checks at once: a check keeps nothing, so there is nothing to collide",
    "H4": "the death of a rank ends the others within ten seconds, code 7, and the run goes on with the same bits",
    "H5": "a slow rank is waited for, as long as was said",
    "H6": "ranks with other data or code end before the first step",
    "H7": "one process goes on where two were",
    "H8": "figures of an uneven split are those of one process",
    "H9": "a signal to one rank makes all save once",
    "H10": "no process is left over after any of these",
    "V1": "figures are scikit-learn's, with ties, of one class alone, and never of numbers that are none",
    "V2": "DeLong against its slow definition; intervals cover as often as they say, by groups too",
    "V3": "temperature is recovered, the loss never rises, of calibrated answers the error is nothing but chance",
    "V4": "thresholds come from validation, and every door decides by them",
    "V5": "sets and ranges hold the truth as often as promised",
    "V6": "risk by coverage equals its closed form (half the errors gone on solar cells: missed, EXPERIMENTS.md)",
    "V7": "pictures of another kind are told from one's own; a class that was held out is reported",
    "V8": "fifteen kinds of disturbance, five severities each, kept to the bit, and worse as they grow",
    "V9": "flipped labels are found",
    "V10": "copies and near copies across splits are found",
    "V11": "a tag that gives the class away raises the alarm, and nothing else does",
    "V12": "any column parts the figures; the worst part is marked, small ones are not judged",
    "V13": "equal models are told apart in five of a hundred cases",
    "V14": "a page is rebuilt byte for byte, below 5 MB",
    "V15": "the first pages answer their readers' questions without scrolling",
    "V16": "every item of TRIPOD+AI, CLAIM 2024 and Annex IV leads to a section or a question",
    "V17": "what is evaluated is what is deployed: every door decides alike",
    "V18": "the report of ten thousand stored predictions takes less than a minute",
    "X1": "attention and a map of any checkpoint by one call",
    "X2": "every method equals a definition written by hand",
    "X3": "every kind of head, token, position and shape has a map",
    "X4": "the default map lies on planted evidence",
    "X5": "each class has a map of its own",
    "X6": "what the map names matters more to the answer than rollout's choice, and that more than chance",
    "X7": "with shuffled weights little of the map is left (with shuffled labels: `benchmarks/planted_heads.py`)",
    "X8": "the same bytes every time (between trainings: EXPERIMENTS.md)",
    "X9": "tokens that hold notes instead of picture are found, and nothing else",
    "X10": "integrated gradients are complete but for a gap that is told",
    "X11": "the protocol of ImageNet-Segmentation, as a command; not yet measured, for the data is not ours to have",
    "X12": "the papers' figures, one command each, with arrays that are right in closed form",
    "X13": "time and memory, by `benchmarks/explaining.py`: [what a map costs](explaining.md#what-a-map-costs)",
    "X14": "colours are even and safe, and leave the picture's contrast alone",
    "X15": "every picture carries its method and limit, and a map that says nothing is refused",
    "X16": "whatever answers can be covered piece by piece",
    "X17": "the server's maps are the command's",
}
SECTIONS: Mapping[str, str] = {
    "resume": "A", "server": "E", "guards": "F", "together": "H", "evaluation": "V", "explanation": "X",
}  # fmt: skip
"""The markers on the page, and the part of the list between them."""
PARTNERS = "tests/end_to_end/test_partners.py"
NEEDS_NONE = ("A19", "H3", "X13")
"""Of these the line itself says why there is no test."""
BESIDE: Mapping[str, tuple[str, ...]] = {
    "E9": ("tests/unit/serve/test_batcher.py::test_who_has_left_while_waiting_is_never_computed",),
    "E18": ("tests/end_to_end/test_serve.py::test_a_server_for_everybody_without_a_token_says_so_once",),
    "E23": (
        "tests/end_to_end/test_doors.py::test_every_door_decides_alike",
        "tests/end_to_end/test_doors.py::test_every_kind_that_is_accepted_is_among_them_or_has_a_range_of_its_own",
        "tests/end_to_end/test_doors.py::test_whoever_reads_files_decides_alike_about_values_of_another_range",
    ),
    "V10": (
        "tests/unit/data/checks/test_leakage.py::test_D17_every_exact_copy_across_splits_is_found",
        "tests/unit/data/checks/test_near_duplicates.py::test_D18_near_copies_are_found_and_no_others",
        "tests/unit/data/checks/test_leakage.py::test_D19_a_group_in_two_splits_stops_a_training",
        "tests/unit/data/checks/test_leakage.py::test_D20_the_same_picture_with_different_labels_is_listed",
    ),
    "V17": ("tests/end_to_end/test_doors.py::test_every_door_decides_alike",),
    "H10": (
        f"{PARTNERS}::test_H4_the_death_of_a_rank_ends_the_others_and_the_run_goes_on_with_the_same_bits",
        f"{PARTNERS}::test_H9_a_signal_to_one_rank_makes_all_save_once_and_H7_one_process_goes_on",
    ),
}
"""Further tests, which prove more than one thing and bear no number."""


def main() -> None:
    """Replace what stands between the markers."""
    for marker, part in SECTIONS.items():
        fill(PAGE, marker, table(part))


def table(part: str) -> str:
    """One row a number of this part: what is borne, and the tests in their files."""
    lines = ["| | what | tests |", "|---|---|---|"]
    for number, found in proofs().items():
        files: dict[str, list[str]] = {}
        for one in found:
            file, _, name = one.partition("::")
            files.setdefault(file, []).append(f"`{name}`")
        tests = "; ".join(f"{file.removeprefix('tests/')}: {', '.join(names)}" for file, names in files.items())
        if number.startswith(part):
            lines.append(f"| {number} | {WHAT[number]} | {tests} |")
    return "\n".join(lines)


def proofs() -> Mapping[str, list[str]]:
    """The tests of each number as FILE::NAME: those that bear it in their names, then those beside."""
    found: dict[str, list[str]] = {number: [] for number in WHAT}
    there = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in NAME.findall(path.read_text(encoding="utf-8")):
            one = f"{path.relative_to(ROOT).as_posix()}::{name}"
            there.add(one)
            serves = "serve" in path.as_posix() or path.name == "test_hostile_names.py"
            for letter, number in ID.findall(name):
                if letter != "e" or serves:  # elsewhere such a number is of another list
                    found[f"{letter.upper()}{number}"].append(one)
    for number, more in BESIDE.items():
        if gone := set(more) - there:
            raise SystemExit(f"There is no test {', '.join(sorted(gone))}. Say in BESIDE what it is called now.")
        found[number] += more
    return found


if __name__ == "__main__":
    main()
