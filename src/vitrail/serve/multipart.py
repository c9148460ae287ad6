"""The file parts of a form, as places in a body that is already whole: nothing is copied and nothing goes to a disk."""

from __future__ import annotations

from typing import NamedTuple

from .refusals import RefusedError

HEADS = 8192
"""Bytes of a part's head at most."""
BOUNDARY = 200


class Part(NamedTuple):
    """One file."""

    name: str
    """As the client calls it; words, never a path that is opened."""
    data: memoryview


def is_form(content_type: bytes) -> bool:
    """Whether a body is to be read as a form."""
    return content_type.partition(b";")[0].strip().lower() == b"multipart/form-data"


def files_in(body: bytearray, content_type: bytes, most: int) -> list[Part]:
    """Every part with a file name, in order; other fields are left out.

    Args:
        most: parts that a form may have.

    Raises:
        RefusedError: 400, no form by RFC 7578; 413, too many parts.
    """
    from python_multipart.multipart import parse_options_header

    boundary = parse_options_header(content_type.decode("latin-1"))[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= BOUNDARY:
        raise RefusedError(400, "The form's Content-Type names no boundary.")
    found: list[Part] = []
    view, edge = memoryview(body), b"\r\n--" + boundary
    start = _first(body, b"--" + boundary)
    for _ in range(most + 1):
        if bytes(body[start : start + 2]) == b"--":
            return found
        head, end = body.find(b"\r\n\r\n", start, start + HEADS), body.find(edge, start)
        if bytes(body[start : start + 2]) != b"\r\n" or head < 0 or end < head:
            raise RefusedError(400, "The form ends in the middle of a part, or a part has no head.")
        name = _file_name(bytes(body[start + 2 : head]))
        if name is not None:
            found.append(Part(name, view[head + 4 : max(head + 4, end)]))
        start = end + len(edge)
    raise RefusedError(413, f"One form may have {most} parts. Send the others in another one.")


def _first(body: bytearray, edge: bytes) -> int:
    """Where the head of the first part begins."""
    if body.startswith(edge):
        return len(edge)
    place = body.find(b"\r\n" + edge, 0, HEADS)
    if place < 0:
        raise RefusedError(400, "The form does not begin with its boundary.")
    return place + 2 + len(edge)


def _file_name(head: bytes) -> str | None:
    """The name of a part's file; None for a field that is none."""
    from python_multipart.multipart import parse_options_header

    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            name = parse_options_header(value.strip().decode("latin-1"))[1].get(b"filename")
            return None if name is None else name.decode("utf-8", "replace")
    return None
