"""The 42 items of CLAIM, each in our own words with the question for whom only the authors can answer.

Source: Mongan, Moy and Kahn 2020, "Checklist for Artificial Intelligence in Medical Imaging (CLAIM)", Radiology:
Artificial Intelligence 2(2); numbers as there. The update of 2024 (Tejani et al.) asks the same under other numbers.
"""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """One thing that readers of a study must be told."""

    number: int
    part: str
    topic: str
    question: str
    """What the authors must add; empty where the run knows all of it."""


# fmt: off
ITEMS = tuple(Item(number, *words) for number, words in enumerate((
    ("Title and abstract", "Named as a study of AI, with the kind of method",
        ""),
    ("Title and abstract", "A structured summary",
        "Write the abstract: design, methods, results, conclusion."),
    ("Introduction", "Background, intended use and clinical role",
        "What is known, who would use the model, at which moment of care, and what would follow from an answer?"),
    ("Introduction", "Aims and hypotheses",
        "What was the study to find out, stated before the figures were seen?"),
    ("Study design", "Prospective or retrospective",
        "Were the pictures collected for this study, or before it?"),
    ("Study design", "The goal of the study",
        "To make a model, to explore, to show feasibility, or that it is no worse than something?"),
    ("Data", "Sources of the data",
        "Which institutions, dates and machines do the pictures come from, and who may have them?"),
    ("Data", "Who was eligible",
        "How, where and when were patients and studies found, and by which criteria were they in or out?"),
    ("Data", "What was done to the pictures before the model",
        ""),
    ("Data", "Whether only a part of the data was used",
        ""),
    ("Data", "What each label and variable means",
        "Define every finding, with the common data element or code if there is one."),
    ("Data", "How patients were made unrecognisable",
        "How were names, dates and burnt-in letters removed, and who checked it?"),
    ("Data", "What was done about missing data",
        ""),
    ("Ground truth", "What counts as the truth",
        "What is the reference standard, in enough detail to do it again?"),
    ("Ground truth", "Why that",
        "Which other standards exist, and why was this one taken?"),
    ("Ground truth", "Who said so",
        "How many readers, with what training and experience, saw what?"),
    ("Ground truth", "With which tools",
        "Which software, display and instructions did the readers have?"),
    ("Ground truth", "How far readers agree",
        "How much do readers differ from each other and from themselves, and how were differences settled?"),
    ("Partitions", "How many cases, and why so many",
        "How was the number of cases decided?"),
    ("Partitions", "How cases were assigned",
        ""),
    ("Partitions", "At which level partitions are apart",
        ""),
    ("Model", "The model in full",
        ""),
    ("Model", "Software and versions",
        ""),
    ("Model", "What its parameters began with",
        ""),
    ("Training", "How it was trained",
        ""),
    ("Training", "How the final model was chosen",
        ""),
    ("Training", "Whether several models answer together",
        ""),
    ("Evaluation", "Which figures were measured",
        ""),
    ("Evaluation", "How uncertainty was measured",
        ""),
    ("Evaluation", "How robust it is",
        "Disturb the pictures: vitrail evaluate RUN --corruptions films --keep."),
    ("Evaluation", "How answers are explained, and how that was checked",
        "Measure how true the maps are (vitrail explain RUN --faithfulness) and state it."),
    ("Evaluation", "Tested on data from elsewhere",
        "Test it on images of another place (vitrail evaluate RUN ELSEWHERE) and state the figures."),
    ("Results", "The flow of cases",
        "Draw the flow of patients before the pictures reached the source."),
    ("Results", "Who is in each partition",
        "Give age, sex, disease and severity of each partition."),
    ("Results", "Figures on every partition",
        ""),
    ("Results", "Accuracy with its precision",
        ""),
    ("Results", "An analysis of failures",
        "Look at the pictures and say what the failures have in common."),
    ("Discussion", "Limitations",
        "Which biases of selection, labels and place remain?"),
    ("Discussion", "What follows for practice",
        "What would have to happen before it is used, and in which role?"),
    ("Other", "Registration",
        "Number and name of the registry."),
    ("Other", "The protocol",
        "Where can the full protocol be read?"),
    ("Other", "Funding",
        "Who paid, and what had they to say?"),
), 1))
# fmt: on
