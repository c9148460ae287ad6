"""Dossier of a run, for a reviewer or an authority: its report, and with it what TRIPOD+AI, CLAIM and Annex IV ask.

Every section has a number, the items that it answers, and the command that computes it again; an index leads from each
item to its sections. What no run can know is asked for in `dossier.toml`, which is created with the open questions and
never overwritten.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checkpoints import bundle, decision_versions
from ..checkpoints.decision_versions import TRAINED
from ..data.labels.defects import TYPE_COLUMN
from ..data.settings import DataSettings
from ..errors import DamagedFileError, UsageError
from ..evaluate.anomaly_metrics import AnomalyMetrics
from ..evaluate.drift import FALSE_ALARMS, MONTH_DAYS, SCORE, ScoredImages, collect_measures, describe_promise
from ..evaluate.subgroups import SubgroupReport
from ..files import atomic, strict_json
from . import audience, page, provenance, saliency, verification
from .audience import MissingItem
from .cards import read_data_card
from .checklists import CHECKLISTS, FIELD, FIELDS, QUESTIONS, ChecklistItem, Question, list_questions
from .decision_section import DecidedRun, decide_run, list_banks, list_decisions
from .extra_findings import read_extra_findings
from .operating_points import binary_targets
from .run_description import RunRecord, describe_methods, describe_partitions

ANSWERS_FILE = "dossier.toml"
ANSWERS_HEADER = """# What the run does not know: your answers, in quotes; three quotes for several lines.
# Empty ones stay open questions. Write the dossier again with: vitrail report RUN --for dossier
# It asks in the words of your field, once that is stated, and leaves out what does not apply to it.
"""
OF_PICTURES = (
    "errors", "trust", "curves", "classes", "mistakes", "right", "decisions", "subgroups", "maps", "shortcuts",
    "robustness", "watch",
)  # fmt: skip
"""Sections that are of single pictures, where a run answers cases too."""
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
    inapplicable: int
    """Of which the field asks nothing."""


class Section(NamedTuple):
    """A section of the page."""

    number: int
    id: str
    title: str


class Lack(NamedTuple):
    """What a section does not hold that an item asks for."""

    section: str
    """The id of the section that says so."""
    text: str


class ItemRow(NamedTuple):
    """An item in the index."""

    item: ChecklistItem
    sections: list[Section]
    asked: list[Question]
    """Questions of the item without an answer."""
    answered: list[Question]
    lacking: list[Lack]

    @property
    def state(self) -> str:
        """answered, partly, open or inapplicable."""
        known = bool(self.sections or self.answered)
        if self.item.questions and not (known or self.asked or self.item.sections):
            return "inapplicable"
        return "partly" if known and (self.asked or self.lacking) else "answered" if known else "open"


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
    context = _dossier_context(run, folder, subgroups, answers)
    html = page.render_report(
        run.facts, run.predictions, folder, None, list_decisions(run, folder), list_banks(run), context
    )
    unmeasured = {"subgroups"} if isinstance(subgroups, str) else set()
    html, rows = _number_sections(html, run, context, list_commands(run, folder), unmeasured)
    path = folder / page.REPORT_FILE
    atomic.write_bytes(path, html.encode("utf-8", "replace"))
    if not (folder / ANSWERS_FILE).exists():
        questions = "".join(f'{one.name} = ""  # {one.topic}: {one.text}\n' for one in QUESTIONS)
        atomic.write_text(folder / ANSWERS_FILE, ANSWERS_HEADER + questions)
    counts = {name: count_items(each) for name, each in rows.items()}
    return Dossier(path, folder / ANSWERS_FILE, counts, context["open_questions"])


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
    if answers.get(FIELD, "") not in ("", *FIELDS):
        raise DamagedFileError(f"{path} must have a {FIELD} among {', '.join(FIELDS)}. Got {answers[FIELD]!r}.")
    return {name: text.strip() for name, text in answers.items() if text.strip()}


def count_items(rows: Sequence[ItemRow]) -> ItemCounts:
    """How many items are answered, partly answered and open."""
    states = [row.state for row in rows]
    return ItemCounts(*(states.count(state) for state in ("answered", "partly", "open", "inapplicable")))


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
    found = tuple(one.text for one in card.issues) if card is not None else ()
    limits += [text for text in facts.warnings if not text.startswith(tuple(limits))]
    uses, verified = list(_read_uses(folder, run)), verification.read_verification(folder)
    splits = [one.split for one in facts.all_metrics]
    questions = _choose_questions(answers, bool(uses) and bool(uses[-1].get("by")))
    return {
        "methods": describe_methods(record),
        "partitions": describe_partitions(record),
        "subgroups": None if isinstance(subgroups, str) else subgroups,
        "no_subgroups": page.hide_folders(subgroups.removesuffix(".")) if isinstance(subgroups, str) else "",
        "missing": list(_list_missing(run, folder, subgroups, bool(evaluations))),
        "provenance": provenance.read_provenance(folder, facts),
        "limits": [text for text in limits if not text.startswith(found)],
        "evaluations": evaluations,
        "watch": watch,
        "uses": uses,
        "in_use": TRAINED if run.kept is None else run.kept.in_use,
        "decided": facts.decisions if run.kept is None else run.kept.current,
        "lacking": dict(_list_lacking(run, folder, subgroups)),
        "verified": verified,
        "unverified": [] if verified is None else [one for one in splits if one not in verified.splits],
        "hashes": verification.hash_files(folder),
        "questions": questions,
        "answers": answers,
        "open_questions": sum(one.name not in answers for one in questions),
    }


def _choose_questions(answers: Mapping[str, str], use_is_recorded: bool) -> list[Question]:
    """The questions of the authors' field, and others that they have answered."""
    asked = [one for one in list_questions(answers.get(FIELD, "")) if not (use_is_recorded and one.name == "in_use")]
    names = {one.name for one in asked}
    return asked + [one for one in QUESTIONS if one.name in answers and one.name not in names]


def _list_lacking(run: DecidedRun, folder: Path, subgroups: SubgroupReport | str) -> Iterator[tuple[str, Lack]]:
    """What sections of this run do not hold, by its name in the checklists."""
    columns = set() if isinstance(subgroups, str) else {one.name for one in subgroups.columns}
    if not columns - {TYPE_COLUMN}:
        only = Lack("subgroups", "types of defect are the only subgroups")
        yield "columns", only if columns else Lack("missing", "no subgroups were measured")
    if run.kept is None or (len(run.kept.by_name) == 1 and not list_banks(run)):
        yield "updated", Lack("decisions", "nothing to report, as nothing was changed since the training")
    maps = saliency.load_explanations(folder)
    has_maps = maps is not None and len(maps.rows) > 0
    if maps is not None and not has_maps and maps.about.was_checked:
        yield "checked", Lack("missing", "maps were checked, and none is shown because none passed")
    elif maps is None or not has_maps or not maps.about.was_checked:
        command = list_commands(run, folder)["maps"]
        how = f": {command}" * ("--faithfulness" in command)
        yield "checked", Lack("maps" if has_maps else "missing", f"maps were not checked{how}")


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
        why = "this run folder holds none whose method passed its check"
        if maps is not None and maps.about.was_checked:
            why = maps.about.checked[0].lower() + maps.about.checked[1:].rstrip(".")
        yield MissingItem("Maps of what an answer rests on", why)
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


def list_commands(run: DecidedRun, folder: Path) -> dict[str, str]:
    """What computes the numbers of a section again, by its id; "" is that of every other section."""
    task, is_folds, suite = run.facts.task, run.kept is None, read_extra_findings(folder).robustness
    stored = "vitrail evaluate RUN" if task == "segmentation" else "vitrail report RUN" + " --verify" * (not is_folds)
    model = "RUN/fold-0" if is_folds and not (folder / "plan.toml").is_file() else "RUN"
    train, dossier = f"vitrail train --plan {model}/plan.toml", "vitrail report RUN --for dossier"
    return {
        "": stored,
        **dict.fromkeys(("training", "learning", "repeat"), train),
        "plan": f"{train} --dry-run",
        "pictures": _format_check(run.facts.plan),
        "subgroups": "vitrail evaluate RUN --by all",
        "suspects": f"vitrail evaluate {model} --suspects {model}/suspects.csv",
        "shortcuts": f"vitrail evaluate {model} --shortcuts --keep",
        "robustness": f"vitrail evaluate {model} --corruptions {'films' if suite is None else suite.suite} --keep",
        "maps": f"vitrail explain {model} {'PICTURE' if task in ('anomaly', 'segmentation') else '--faithfulness'}",
        "elsewhere": "vitrail evaluate RUN SOURCE",
        "decisions": f"vitrail {'evaluate' if task in ('anomaly', 'segmentation') else 'decide'} {model}",
        "banks": "vitrail evaluate RUN",
        "watch": "vitrail watch RUN PICTURES --since DATE",
        **dict.fromkeys(("methods", "limits", "authors", "missing", "items"), dossier),
    }


def _format_check(plan: str) -> str:
    """The check of the pictures, read as the plan reads them; capitals stand for its folders and files."""
    data, words = tomllib.loads(plan).get("data", {}), ["vitrail", "check", "SOURCE"]
    for field in fields(DataSettings):
        value = data.get(field.name, field.default)
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        if field.name == "source" or value == default:
            continue
        text = ",".join(value) if isinstance(value, list) else str(value).lower() if value is True else str(value)
        words += [f"--data.{field.name}", field.name.upper() if "/" in text else text]
    return shlex.join(words)


def _number_sections(
    html: str, run: DecidedRun, context: Mapping[str, Any], commands: Mapping[str, str], unmeasured: Collection[str]
) -> tuple[str, dict[str, list[ItemRow]]]:
    """The page with numbered sections, each with its items and its command, with contents and index.

    Args:
        unmeasured: ids of sections that say why there is nothing in them, and so answer no item.
    """
    sections = [Section(number, *found) for number, found in enumerate(HEADING.findall(html), 1)]
    by_id = {one.id: one for one in sections if one.id not in unmeasured}
    rows = {name: [_find_answers(item, by_id, context) for item in items] for name, items in CHECKLISTS.items()}
    numbers = iter(sections)

    def add_lines(_: re.Match[str]) -> str:
        section = next(numbers)
        found = {name: [row.item.number for row in each if section in row.sections] for name, each in rows.items()}
        unit = "of single pictures" if section.id in OF_PICTURES and run.facts.case_pool is not None else ""
        return page.render_template(
            "dossier_heading.html.j2",
            {
                "section": section,
                "tags": [(name, items) for name, items in found.items() if items],
                "unit": unit,
                "command": commands.get(section.id, commands[""]),
            },
        )

    html = HEADING.sub(add_lines, html)
    counts = {name: count_items(each) for name, each in rows.items()}
    shown = {"sections": sections, "rows": rows, "counts": counts, "open_questions": context["open_questions"]}
    for place, name in ((CONTENTS_PLACE, "dossier_contents.html.j2"), (INDEX_PLACE, "dossier_items.html.j2")):
        html = html.replace(place, page.render_template(name, shown))
    return html, rows


def _find_answers(item: ChecklistItem, sections: Mapping[str, Section], context: Mapping[str, Any]) -> ItemRow:
    """Where an item is answered on a page that has these sections."""
    asked = [one for one in context["questions"] if one.name in item.questions]
    places = [place.partition(".")[::2] for place in item.sections]
    return ItemRow(
        item,
        sorted(sections[id] for id, condition in places if id in sections and condition not in context["lacking"]),
        [one for one in asked if one.name not in context["answers"]],
        [one for one in asked if one.name in context["answers"]],
        [context["lacking"][condition] for _, condition in places if condition in context["lacking"]],
    )
