"""Sentences beside an answer: why the model abstains, and what is special about the file of the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..data.decoding import decoded_image as remarks
from ..evaluate.decisions import UNLIKE, UNSURE, Decisions
from ..evaluate.tables import ABSTENTION_UNKNOWN

FILE_REMARKS = {
    remarks.END_MISSING: "The file lacks its end, and nothing of the picture is missing.",
    remarks.SEVERAL_FRAMES: "The file holds several frames. The answer is about the first.",
    remarks.PROFILE_IGNORED: "The file carries a colour profile, which is not applied.",
    remarks.EXIF_UNREADABLE: "The file's EXIF block cannot be read, so the picture may lie on its side.",
    remarks.DAMAGE_OUTSIDE_PIXELS: "The file is damaged beside its pixels.",
    remarks.DAMAGE_IN_PIXELS: "The file is damaged among its pixels. The answer may be about other pixels than were "
    "taken.",
}
"""Notes of a response about its file; an EXIF rotation is not worth one."""


def add_notes(row: Mapping[str, object], decisions: Decisions, file_remarks: Sequence[str]) -> dict[str, object]:
    """A row of predictions with notes about an abstention and about the file."""
    abstention = explain_abstentions(decisions).get(str(row.get("abstain")))
    return {
        **row,
        "notes": [
            *([abstention] if abstention else []),
            *(FILE_REMARKS[one] for one in file_remarks if one in FILE_REMARKS),
        ],
    }


def explain_abstentions(decisions: Decisions) -> dict[str, str]:
    """Why the model abstains from an answer, by the value of the column `abstain`."""
    return {
        UNSURE: f"No class is likely enough: an answer needs a probability of at least {decisions.sure:.1%}.",
        UNLIKE: "This picture is unlike those that the model was trained on, so its answer is not to be relied on.",
        ABSTENTION_UNKNOWN: "Whether this picture is like those that the model was trained on is not known.",
    }
