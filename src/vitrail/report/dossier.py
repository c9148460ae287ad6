"""Dossier of a run, for a reviewer or an authority: its report, and with it what TRIPOD+AI, CLAIM and Annex IV ask.

Every section has a number, the items that it answers, and the command that computes it again; an index leads from each
item to its sections. What no run can know is asked for in `dossier.toml`, which is created with the open questions and
never overwritten.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checkpoints import bundle, decision_versions
from ..checkpoints.decision_versions import TRAINED
from ..errors import DamagedFileError, UsageError
from ..evaluate.anomaly_metrics import AnomalyMetrics
from ..evaluate.drift import FALSE_ALARMS, MONTH_DAYS, SCORE, ScoredImages, collect_measures, describe_promise
from ..evaluate.subgroups import SubgroupReport
from ..files import atomic, strict_json
from . import audience, page, provenance, saliency, verification
from .audience import MissingItem
from .cards import read_data_card
from .checklists import CHECKLISTS, QUESTIONS, ChecklistItem, Question
from .decision_section import DecidedRun, decide_run, list_banks, list_decisions
from .extra_findings import read_extra_findings
from .operating_points import binary_targets
from .run_description import RunRecord, describe_methods, describe_partitions

ANSWERS_FILE = "dossier.toml"
ANSWERS_HEADER = """# What the run does not know: your answers, in quotes; three quotes for several lines.
# Empty ones stay open questions. Write the dossier again with: vitrail report RUN --for dossier
"""
COMMANDS = {
    "training": "vitrail train --plan RUN/plan.toml",
    "learning": "vitrail train --plan RUN/plan.toml",
    "repeat": "vitrail train --plan RUN/plan.toml",
    "plan": "vitrail train SOURCE --dry-run",
    "pictures": "vitrail check SOURCE",
    "subgroups": "vitrail evaluate RUN --by all",
    "suspects": "vitrail evaluate RUN --suspects RUN/suspects.csv",
    "shortcuts": "vitrail evaluate RUN --shortcuts --keep",
    "robustness": "vitrail evaluate RUN --corruptions SUITE --keep",
    "maps": "vitrail explain RUN PICTURE --faithfulness",
    "elsewhere": "vitrail evaluate RUN SOURCE",
    "decisions": "vitrail decide RUN",
    "banks": "vitrail evaluate RUN",
    "watch": "vitrail watch RUN PICTURES --since DATE",
    **dict.fromkeys(("methods", "limits", "authors", "missing", "items"), "vitrail report RUN --for dossier"),
}
"""What computes the numbers of a section again; one of the next three those of every other one."""
STORED, STORED_FOLDS, STORED_MASKS = "vitrail report RUN --verify", "vitrail report RUN", "vitrail evaluate RUN"
HEADING = re.compile(r'<h2 id="([\w-]+)">(.*?)</h2>', re.DOTALL)
INDEX_PLACE, CONTENTS_PLACE = "<!-- items -->", "<!-- contents -->"


class Dossier(NamedTuple):
    """The written page, and how many items it answers."""

    page: Path
    answers: Path
    """The file with the authors' answers."""
    counts: Mapping[str, ItemCounts]
    """By checklist."""
    open_questions: int


class ItemCounts(NamedTuple):
    """Items of a checklist by how far they are answered."""

    answered: int
    partly: int
    """Of which the authors have to add something, or something is not measured."""
    open: int


class Section(NamedTuple):
    """A section of the page."""

    number: int
    id: str
    title: str


class ItemRow(NamedTuple):
    """An item in the index."""

    item: ChecklistItem
    sections: list[Section]
    asked: list[Question]
    """Questions of the item without an answer."""
    answered: list[Question]

    @property
    def state(self) -> str:
        """answered, partly or open."""
        known = bool(self.sections or self.answered)
        return "partly" if known and self.asked else "answered" if known else "open"


@dataclass(frozen=True, kw_only=True)
class WatchPlan:
    """What a watch of the pictures in use would promise, with the numbers of this run."""

    promise: str
    days: float
    """Mean days to a false alarm, at least."""
    measures: list[str]
    reference: int
    """Held-out images that the stream is compared with."""
    only_good: bool
    """Whether those with a defect are left out of them."""
    groups: int | None
    abstained: float
    """Share of these without an answer."""
    has_page: bool
    """Whether days were watched already."""


def build_dossier(run_folder: Path, subgroups: SubgroupReport | str) -> Dossier:
    """Write report.html of a run folder as a dossier, and dossier.toml if there is none.

    Args:
        subgroups: by every column of the source, or why there are none.

    Raises:
        UsageError: no report.json, no predictions of its held-out split, or an evaluation instead of a training.
        DataError, DamagedFileError: a stored file that cannot be read, by name; an answer in dossier.toml that is none.
    """
    folder = Path(run_folder)
    run = decide_run(folder)
    if run.facts.kind != "training":
        raise UsageError(
            f"A dossier is of a training, and {folder} is an evaluation of its model. Give the run itself, whose "
            "dossier has the figures of all its evaluations."
        )
    answers = read_answers(folder)
    html = page.render_report(
        run.facts, run.predictions, folder, None, list_decisions(run, folder), list_banks(run),
        _dossier_context(run, folder, subgroups, answers),
    )  # fmt: skip
    html, rows = _number_sections(html, run, answers)
    path = folder / page.REPORT_FILE
    atomic.write_bytes(path, html.encode("utf-8", "replace"))
    if not (folder / ANSWERS_FILE).exists():
        questions = "".join(f'{one.name} = ""  # {one.topic}: {one.text}\n' for one in QUESTIONS)
        atomic.write_text(folder / ANSWERS_FILE, ANSWERS_HEADER + questions)
    counts = {name: count_items(each) for name, each in rows.items()}
    return Dossier(path, folder / ANSWERS_FILE, counts, len(QUESTIONS) - len(answers))


def read_answers(folder: Path) -> dict[str, str]:
    """The authors' answers by the name of the question; empty ones are left out.

    Raises:
        DamagedFileError: dossier.toml is no TOML, or answers what was not asked.
    """
    path = folder / ANSWERS_FILE
    if not path.is_file():
        return {}
    try:
        answers = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f'{path} must be TOML, such as design = "Looking back.". {error}.') from error
    names = [one.name for one in QUESTIONS]
    for name, text in answers.items():
        if name not in names or not isinstance(text, str):
            raise DamagedFileError(
                f"{path} must hold text in quotes for names among {', '.join(names)}. Got {name} = {text!r}."
            )
    return {name: text.strip() for name, text in answers.items() if text.strip()}


def count_items(rows: Sequence[ItemRow]) -> ItemCounts:
    """How many items are answered, partly answered and open."""
    states = [row.state for row in rows]
    return ItemCounts(*(states.count(state) for state in ("answered", "partly", "open")))


def _dossier_context(
    run: DecidedRun, folder: Path, subgroups: SubgroupReport | str, answers: Mapping[str, str]
) -> dict[str, Any]:
    """Context of `dossier.html.j2`, beyond that of every page."""
    facts, predictions, metrics = run.facts, run.predictions, run.metrics
    card, evaluations = read_data_card(folder, facts, metrics), provenance.read_evaluations(folder)
    watch, record = _plan_watch(run, folder), RunRecord(facts=facts, metrics=metrics, card=card)
    targets = binary_targets(predictions, facts.decisions) if facts.task in ("classification", "multilabel") else []
    has_groups = provenance.load_groups(folder, len(predictions)) is not None
    limits = audience.describe_limits(facts, metrics, targets, folder, has_groups)
    return {
        "methods": describe_methods(record),
        "partitions": describe_partitions(record),
        "subgroups": None if isinstance(subgroups, str) else subgroups,
        "missing": list(_list_missing(run, folder, subgroups, bool(evaluations))),
        "provenance": provenance.read_provenance(folder, facts),
        "limits": [*limits, *(text for text in facts.warnings if not any(text.startswith(one) for one in limits))],
        "evaluations": evaluations,
        "watch": watch,
        "uses": list(_read_uses(folder, run)),
        "in_use": TRAINED if run.kept is None else run.kept.in_use,
        "verified": verification.read_verification(folder),
        "hashes": verification.hash_files(folder),
        "questions": QUESTIONS,
        "answers": answers,
    }


def _list_missing(
    run: DecidedRun, folder: Path, subgroups: SubgroupReport | str, evaluated: bool
) -> Iterator[MissingItem]:
    """What this run has not measured, and how to."""
    task, found, maps = run.facts.task, read_extra_findings(folder), saliency.load_explanations(folder)
    whose = "RUN" if run.kept is not None else "RUN/fold-0"
    if isinstance(subgroups, str):
        yield MissingItem("Subgroups", page.hide_folders(subgroups.removesuffix(".")))
    if not evaluated:
        yield MissingItem("Pictures from elsewhere", "none were tested: vitrail evaluate RUN SOURCE")
    per_picture = (
        ("Robustness", found.robustness, "no picture was disturbed on purpose", "--corruptions imagenet-c --keep"),
        ("Shortcuts", found.shortcuts, "border and centre were not covered", "--shortcuts --keep"),
        ("Labels that may be wrong", found.suspects, "they were not searched for", f"--suspects {whose}/suspects.csv"),
    )
    for what, finding, reason, flags in per_picture:
        if finding is None and task == "segmentation":
            yield MissingItem(what, "it is asked of one answer for each picture, and this model answers every pixel")
        elif finding is None and task == "anomaly" and "--suspects" in flags:
            yield MissingItem(what, "no label was learnt; calibration.csv has the good pictures that look least so")
        elif finding is None:
            yield MissingItem(what, f"{reason}: vitrail evaluate {whose} {flags}")
    if maps is None or not len(maps.rows):
        yield MissingItem("Maps of what an answer rests on", "this run folder holds none whose method passed its check")
    if run.kept is None:
        yield MissingItem("A plan of monitoring", "a watch is of one model, and here those of several folds answer")


def _plan_watch(run: DecidedRun, folder: Path) -> WatchPlan | None:
    """What a watch promises; None where no single model answers."""
    if run.kept is None:
        return None
    facts, n, reference = run.facts, len(run.predictions), len(run.predictions)
    if isinstance(run.metrics, AnomalyMetrics) and run.metrics.good:
        reference = run.metrics.good  # as most of what comes in use are
    names = (SCORE,) if facts.task == "anomaly" else facts.classes
    has_distances = (folder / "model" / bundle.FEATURE_STATS_FILE).is_file()
    nothing = ScoredImages(
        ids=(), times=np.zeros(0, "datetime64[s]"), groups=None, distances=np.zeros(0) if has_distances else None,
        scores=np.zeros((0, len(names))), abstained=np.zeros(0, bool),
    )  # fmt: skip
    abstained = [bool(reason) for reason in run.predictions.abstain_reasons]
    return WatchPlan(
        promise=describe_promise(FALSE_ALARMS, run.metrics.groups is not None),
        days=MONTH_DAYS / FALSE_ALARMS,
        measures=list(collect_measures(facts.task, names, nothing)),
        reference=reference,
        only_good=facts.task == "anomaly",
        groups=run.metrics.groups,
        abstained=sum(abstained) / n,
        has_page=(folder / "watch" / "watch.html").is_file(),
    )


def _read_uses(folder: Path, run: DecidedRun) -> Iterator[Mapping[str, Any]]:
    """Which decision was put to use, by whom and when."""
    if run.kept is None:
        return
    listed = bundle.read_bundle_info(folder / "model", check_weights=False).listed
    for name in decision_versions.list_use_files(listed):
        yield strict_json.read_json(folder / "model" / name)


# -- Numbers, items and commands of every section; contents and index


def _number_sections(html: str, run: DecidedRun, answers: Mapping[str, str]) -> tuple[str, dict[str, list[ItemRow]]]:
    """The page with numbered sections, each with its items and its command, with contents and index."""
    sections = [Section(number, *found) for number, found in enumerate(HEADING.findall(html), 1)]
    by_id = {one.id: one for one in sections}
    stored = STORED_MASKS if run.facts.task == "segmentation" else STORED_FOLDS if run.kept is None else STORED
    rows = {name: [_find_answers(item, by_id, answers) for item in items] for name, items in CHECKLISTS.items()}
    tags = {
        one.id: [
            (name, [row.item.number for row in each if one in row.sections])
            for name, each in rows.items()
            if any(one in row.sections for row in each)
        ]
        for one in sections
    }

    def add_lines(found: re.Match[str]) -> str:
        section = by_id[found[1]]
        return page.render_template(
            "dossier_heading.html.j2",
            {"section": section, "tags": tags[section.id], "command": COMMANDS.get(section.id, stored)},
        )

    html = HEADING.sub(add_lines, html)
    counts = {name: count_items(each) for name, each in rows.items()}
    context = {"sections": sections, "rows": rows, "counts": counts, "open_questions": len(QUESTIONS) - len(answers)}
    for place, name in ((CONTENTS_PLACE, "dossier_contents.html.j2"), (INDEX_PLACE, "dossier_items.html.j2")):
        html = html.replace(place, page.render_template(name, context))
    return html, rows


def _find_answers(item: ChecklistItem, sections: Mapping[str, Section], answers: Mapping[str, str]) -> ItemRow:
    """Where an item is answered on a page that has these sections."""
    asked = [one for one in QUESTIONS if one.name in item.questions]
    return ItemRow(
        item,
        sorted(sections[id] for id in item.sections if id in sections),
        [one for one in asked if one.name not in answers],
        [one for one in asked if one.name in answers],
    )
