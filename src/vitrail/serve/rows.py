"""A row of predictions as a client gets it: the columns of `vitrail predict`, and what else a person should know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from ..data.decoding import decoded_image as remarks
from ..evaluate.decisions import UNLIKE, UNSURE, Decisions
from ..predict.batches import ImageName

LONGEST_NAME = 1000
OF_FILES = {
    remarks.END_MISSING: "The file lacks its end, and nothing of the picture is missing.",
    remarks.SEVERAL_FRAMES: "The file holds several frames. The answer is about the first.",
    remarks.PROFILE_IGNORED: "The file carries a colour profile, which is not applied.",
    remarks.EXIF_UNREADABLE: "The file's EXIF block cannot be read, so the picture may lie on its side.",
    remarks.DAMAGE_OUTSIDE_PIXELS: "The file is damaged beside its pixels.",
    remarks.DAMAGE_IN_PIXELS: "The file is damaged among its pixels. The answer may be about other pixels than were "
    "taken.",
}
"""What clients are told of a file; that it was turned upright is nothing to worry about."""


def name_of(header: bytes) -> ImageName:
    """What a client calls its picture: the header X-Filename, percent-encoded or plain. No file is opened by it."""
    return named(unquote(header.decode("latin-1"), errors="replace"))


def named(path: str) -> ImageName:
    """A path of the client's and its last part, of bounded length."""
    short = path[:LONGEST_NAME]
    return ImageName(short, short.replace("\\", "/").rpartition("/")[2])


def with_notes(row: Mapping[str, object], decided: Decisions, said: Sequence[str]) -> dict[str, object]:
    """A row and its notes.

    Args:
        said: remarks about the file.
    """
    return {**row, "notes": [*_of_answer(row, decided), *(OF_FILES[one] for one in said if one in OF_FILES)]}


def _of_answer(row: Mapping[str, object], decided: Decisions) -> list[str]:
    """Why nothing is answered."""
    if row.get("abstain") == UNSURE:
        return [f"No class is likely enough: an answer needs a probability of at least {decided.sure:.1%}."]
    if row.get("abstain") == UNLIKE:
        return ["This picture is unlike those that the model was trained on, so its answer is not to be relied on."]
    return []
