"""Pickles that ask to run something. Every one of them would make the canary's folder in an ordinary reader."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import torch

Made = Iterator[tuple[str, bytes, str]]
MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""torch's magic number as a pickle, without the opening of a protocol."""


class Calls:
    """Asks for one call when it is unpickled."""

    def __init__(self, function, *arguments):
        self.asked = function, arguments

    def __reduce__(self):
        return self.asked


def text(words: object) -> bytes:
    """A text as a pickle's opcode."""
    data = str(words).encode()
    return b"X" + struct.pack("<I", len(data)) + data


def call(name: str, *arguments: object) -> bytes:
    """A call of `module name` with texts as arguments."""
    return b"c" + name.replace(" ", "\n").encode() + b"\n(" + b"".join(map(text, arguments)) + b"tR"


def saved(content: object, protocol: int = 2, zipped: bool = True) -> bytes:
    """What torch.save writes."""
    file = io.BytesIO()
    torch.save(content, file, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def pickles(canary: Path) -> Made:
    """Plain pickles under the names of weights, then torch's own containers around them."""
    code = f"__import__('os').mkdir({str(canary)!r})"
    asks = "asks to run "
    yield "eval.pt", b"\x80\x02" + call("builtins eval", code) + b".", asks + "builtins.eval"
    yield "exec.pth", b"\x80\x02" + call("__builtin__ exec", code) + b".", asks + "__builtin__.exec"
    yield "system.bin", b"\x80\x02" + call("os system", f"mkdir {canary}") + b".", asks + "os.system"
    yield "hub.ckpt", b"\x80\x02" + call("torch.hub load", "owner/name", "main") + b".", asks + "torch.hub.load"
    yield "resolve.pt", b"\x80\x02" + call("pkgutil resolve_name", "os:mkdir") + b".", asks + "pkgutil.resolve_name"
    chain = b"\x80\x02" + call("importlib import_module", "os") + b"0" + call("operator attrgetter", "mkdir") + b"."
    yield "chain.pt", chain, asks + "importlib.import_module, operator.attrgetter"
    hidden = b"\x80\x02" + call("os mkdir", canary) + b"0}."
    yield "popped.pt", hidden, asks + "os.mkdir"
    yield "popped-in-torch.pt", b"\x80\x02" + MAGIC + hidden, asks + "os.mkdir"
    yield "broken-after.pt", b"\x80\x02" + call("os mkdir", canary) + b"\xff\xff", asks + "os.mkdir"
    yield "cut-after.pt", b"\x80\x02" + call("os mkdir", canary), asks + "os.mkdir"
    yield "instance.pt", b"(" + b"S" + repr(str(canary)).encode() + b"\nios\nmkdir\n.", asks + "os.mkdir"
    yield "object.pt", b"(cos\nmkdir\n" + text(canary) + b"o.", asks + "os.mkdir"
    named = b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93" + text(canary) + b"\x85R."
    yield "by-stack.pt", named, asks + "os.mkdir"
    built = b"\x80\x02cargparse\nNamespace\n)\x81}" + text("x") + call("os mkdir", canary) + b"sb."
    yield "in-state.pt", built, asks + "os.mkdir"
    words = b"\x80\x04cos\nmkdir\n" + text(canary) + b"\x85}\x92."
    yield "with-words.pt", words, asks + "os.mkdir"
    yield "extension.pt", b"\x80\x02\x82\x01.", "uses EXT1"
    yield "buffer.pt", b"\x80\x05\x97.", "uses NEXT_BUFFER"
    yield "unnamed-call.pt", b"\x80\x02K\x01)R.", "calls something that is no name"
    yield (
        "from-bytes.pt",
        b"\x80\x02" + call("torch.storage _load_from_bytes", "x") + b".",
        asks + "torch.storage._load",
    )
    yield "newline.pt", b"\x80\x04" + text("o\ns") + text("\x1b[2J") + b"\x93.", r"'o\\ns\.\\x1b\[2J'"
    for protocol in range(6):
        asked = {"weight": torch.ones(1), "x": Calls(os.mkdir, str(canary))}
        for kind, zipped in (("zip", True), ("old", False)):
            yield f"{kind}-{protocol}.pt", saved(asked, protocol, zipped), asks + os.mkdir.__module__ + ".mkdir"
        yield f"plain-{protocol}.pkl.pt", pickle.dumps(Calls(os.mkdir, str(canary)), protocol), asks
    yield "module.pt", saved(torch.nn.Linear(1, 1)), r"asks to run torch\.nn\.modules\.linear\.Linear"
    yield "both.pt", saved([Calls(eval, code), Calls(os.mkdir, str(canary))]), r"__builtin__\.eval, \w+\.mkdir"
    yield "old.tar", tarred(), "tar archive, the format of torch before 0.1.10"
    yield from costly()


def costly() -> Made:
    """Pickles that name nothing and cost a careless reader its time or memory."""
    opening = b"\x80\x02" + MAGIC
    whole = "is not a whole PyTorch weights file"
    yield "steps.pt", b"\x80\x02]" + b"(K\x01e" * 400_000 + b".", "more than 500000 steps"
    yield "memo.pt", b"\x80\x02}r\xff\xff\xff\xff0", whole
    yield "length.pt", b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x", whole
    yield "frame.pt", b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"}.", "not a weights file of torch"
    yield "integer.pt", b"L" + b"9" * 100_000 + b"L\n.", whole
    yield "hash.pt", opening + b"}" + b")" + b"2\x86" * 60 + b"K\x01s.", "a key is a tuple"
    yield "nested.pt", opening + b"]" * 300_000 + b".", "unknown version"
    itself = b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s."
    yield "itself.pt", zipped_pickle(itself), "a dictionary contains itself"
    yield "stride.pt", zipped_pickle(tensor(1, (2**20, 2**20), (0, 0)), bytes(4)), "goes beyond its storage"
    yield "beyond.pt", zipped_pickle(tensor(1, (4,), (1,)), bytes(4)), "goes beyond its storage of size 1"
    yield "no-storage.pt", zipped_pickle(tensor(1, (1,), (1,))), r"archive/data/0 is missing"
    yield "storage-size.pt", zipped_pickle(tensor(9, (1,), (1,)), bytes(4)), "has 4 bytes, expected 36"


def tensor(count: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """A dictionary with one tensor, over the storage 0 of so many numbers."""

    def whole(numbers: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"J" + struct.pack("<i", number) for number in numbers) + b"t"

    kind = b"ctorch\nFloatStorage\n"
    storage = b"(" + text("storage") + kind + text("0") + text("cpu") + b"J" + struct.pack("<i", count) + b"tQ"
    rebuilt = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + whole(shape) + whole(strides) + b"\x89)tR"
    return b"\x80\x02}" + text("weight") + rebuilt + b"s."


def zipped_pickle(data: bytes, storage: bytes | None = None) -> bytes:
    """A torch archive with this pickle and, perhaps, one storage."""
    import zipfile

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        if storage is not None:
            archive.writestr("archive/data/0", storage)
    return file.getvalue()


def tarred() -> bytes:
    """A tar archive with the names that torch used in 2016."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            archive.addfile(tarfile.TarInfo(name))
    return file.getvalue()
