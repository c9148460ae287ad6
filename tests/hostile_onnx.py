"""ONNX models that reach for what is not theirs: written by code, in Protocol Buffers' wire format by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def field(number: int, value: int | bytes) -> bytes:
    """One field: a whole number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def tensor(location: str | None = None, **said: str) -> bytes:
    """A tensor called w; with a location, in another file."""
    plain = field(1, 2) + field(2, 1) + field(8, b"w")
    if location is None:
        return plain + field(9, bytes(8))
    pairs = {"location": location, **said}
    entries = [field(13, field(1, key.encode()) + field(2, text.encode())) for key, text in pairs.items()]
    return plain + b"".join(entries) + field(14, 1)


def model(*graph: bytes) -> bytes:
    """A model with these fields in its graph."""
    return field(1, 8) + field(7, b"".join(graph))


def with_initializer(location: str, **said: str) -> bytes:
    return model(field(5, tensor(location, **said)))


def in_a_branch(location: str) -> bytes:
    """The tensor stands in a node's attribute's graph's node's attribute."""
    constant = field(1, field(5, field(5, tensor(location))))  # node: attribute: tensor
    return model(field(1, field(5, field(6, constant))))  # node: attribute: graph


def deep(levels: int) -> bytes:
    """Graphs inside attributes inside nodes inside graphs."""
    inside = b""
    for _ in range(levels):
        inside = field(1, field(5, field(6, inside)))
    return field(7, inside)


def corpus(folder: Path) -> Iterator[tuple[str, str]]:
    """Write every file; yields its name and words of the sentence that must refuse it."""
    inside = folder / "onnx"
    (inside / "real").mkdir(parents=True)
    (folder / "secret.bin").write_bytes(bytes(64))
    (inside / "weights.bin").write_bytes(bytes(64))
    (inside / "real" / "weights.bin").write_bytes(bytes(64))
    (inside / "link.bin").symlink_to("weights.bin")
    (inside / "linked").symlink_to("real")
    (inside / "once.bin").write_bytes(bytes(64))
    os.link(inside / "once.bin", inside / "hard.bin")
    plain = "must be a plain file inside the model folder"
    files = {
        "absolute": (with_initializer(str(folder / "secret.bin")), f"is an absolute path.*{plain}"),
        "drive": (with_initializer("C:\\secret.bin"), f"is an absolute path.*{plain}"),
        "share": (with_initializer("\\\\host\\share\\x"), f"is an absolute path.*{plain}"),
        "up": (with_initializer("../secret.bin"), f"leads out of the folder.*{plain}"),
        "up-later": (with_initializer("real/../../secret.bin"), f"leads out of the folder.*{plain}"),
        "up-windows": (with_initializer("real\\..\\..\\secret.bin"), f"leads out of the folder.*{plain}"),
        "link": (with_initializer("link.bin"), f"is or lies behind a link.*{plain}"),
        "link-above": (with_initializer("linked/weights.bin"), f"is or lies behind a link.*{plain}"),
        "hard-link": (with_initializer("hard.bin"), f"second name on the disk.*{plain}"),
        "folder": (with_initializer("real"), f"is no plain file.*{plain}"),
        "nothing": (with_initializer(""), f"is no file name.*{plain}"),
        "nul": (with_initializer("weights.bin\0"), f"is no file name.*{plain}"),
        "absent": (with_initializer("gone.bin"), f"cannot be read.*{plain}"),
        "offset": (with_initializer("weights.bin", offset="65"), f"goes up to 65.*{plain}"),
        "length": (with_initializer("weights.bin", offset="60", length="8"), f"goes up to 68.*{plain}"),
        "negative": (with_initializer("weights.bin", offset="-1"), "offset or length of external data reads '-1'"),
        "branch": (in_a_branch("../secret.bin"), f"leads out of the folder.*{plain}"),
        "deep": (deep(10_000), "nests deeper than 64"),
        "cut": (with_initializer("weights.bin")[:-3], "goes beyond its end|truncated"),
        "no-graph": (field(1, 8), "it holds no graph"),
        "text": (b"this is no model at all", "is not a whole ONNX model"),
        "many": (field(7, field(2, b"") * 1_000_001), "more than 1,000,000 fields"),
    }
    for name, (content, words) in files.items():
        (inside / f"{name}.onnx").write_bytes(content)
        yield f"onnx/{name}.onnx", words
