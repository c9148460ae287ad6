"""Files that somebody made to do harm, or that a bad disk made: written by code, never kept.

`corpus` writes all of them. Run as a script, `python tests/hostile.py FOLDER`, it opens each through the public door
and prints, as JSON, what became of it, in how many seconds of CPU, and with how much memory.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import hostile_amplifiers
import hostile_archives
import hostile_onnx
import hostile_pickles
from memory import peak

CANARY = "canary"
"""The name of the folder that a file would make if it could run anything."""


class Case(NamedTuple):
    """One file, and words of the sentence that must refuse it."""

    name: str
    words: str
    """A regular expression."""


def corpus(folder: Path) -> list[Case]:
    """Write every file into a folder."""
    canary = folder / CANARY
    made = [*safetensors(), *hostile_pickles.pickles(canary), *hostile_archives.archives(canary), *others()]
    made += hostile_amplifiers.amplifiers()
    cases = []
    for name, content, words in made:
        (folder / name).write_bytes(content)
        cases.append(Case(name, words))
    cases += [Case(name, words) for name, words in hostile_onnx.corpus(folder)]
    return [*cases, *sparse(folder), *configs(folder), *special(folder)]


Made = Iterator[tuple[str, bytes, str]]


def header(text: str | bytes, data: bytes = b"") -> bytes:
    """A safetensors file with this header."""
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: object, offsets: object, number: str = "F32") -> dict[str, object]:
    return {"dtype": number, "shape": shape, "data_offsets": offsets}


def fields(**entries: object) -> str:
    return json.dumps(entries)


def safetensors() -> Made:
    """Headers that break a promise of the format, or cost a careless reader its memory."""
    two = entry([1], [0, 4])
    yield "header-2-63.safetensors", struct.pack("<Q", 2**63) + b'{"a":{}}', "header of 9223372036854775808 bytes"
    yield "header-cut.safetensors", header(fields(a=two))[:20], "goes beyond its 20"
    yield "header-no-json.safetensors", header('{"a":'), "is not JSON text"
    yield "header-list.safetensors", header('["a"]  '), "does not begin with a brace"
    yield "header-latin.safetensors", header(b'{"\xe9":{}}'), "is not JSON text"
    yield "overlap.safetensors", header(fields(a=entry([2], [0, 8]), b=entry([2], [4, 12])), bytes(12)), "overlaps a"
    yield "hole.safetensors", header(fields(a=two, b=entry([1], [8, 12])), bytes(12)), "leaves a hole behind a"
    yield "tail.safetensors", header(fields(a=two), bytes(5)), "take 4 bytes, 5 are there"
    yield "short.safetensors", header(fields(a=two), bytes(3)), "take 4 bytes, 3 are there"
    one = json.dumps(two)
    yield "twice.safetensors", header(f'{{"a":{one},"a":{one}}}', bytes(4)), "says 'a' twice"
    yield (
        "overflow.safetensors",
        header(fields(a=entry([2**40, 2**40], [0, 0]))),
        r"takes \d{25} bytes, its place has 0",
    )
    yield "wrap.safetensors", header(fields(a=entry([2**31, 2**31], [0, 0]))), "takes 18446744073709551616 bytes"
    yield "negative.safetensors", header(fields(a=entry([-1, -4], [0, 16])), bytes(16)), "must be at most 16 counts"
    yield "fraction.safetensors", header(fields(a=entry([1.0], [0, 4])), bytes(4)), "must be at most 16 counts"
    yield "axes.safetensors", header(fields(a=entry([1] * 17, [0, 4])), bytes(4)), "must be at most 16 counts"
    yield "offsets.safetensors", header(fields(a=entry([1], [4, 0])), bytes(4)), "the smaller first"
    yield "offset-far.safetensors", header(fields(a=entry([1], [2**62, 2**62 + 4]))), "leaves a hole"
    yield "dtype.safetensors", header(fields(a=entry([1], [0, 4], "F31")), bytes(4)), "number format of a is 'F31'"
    yield "up.safetensors", header(json.dumps({"../../x": two}), bytes(4)), "which is no plain name"
    yield "nul.safetensors", header(json.dumps({"a\0b": two}), bytes(4)), "which is no plain name"
    yield "nameless.safetensors", header(json.dumps({"": two}), bytes(4)), "which is no plain name"
    yield "metadata.safetensors", header(fields(__metadata__={"a": 1})), "metadata must be texts"
    yield (
        "extra.safetensors",
        header(fields(a={**two, "run": "x"}), bytes(4)),
        "must have dtype, shape and data_offsets",
    )
    yield "deep.safetensors", header('{"a":' + "[" * 100_000), "nested deeper than 64"
    tiny = b"{" + b",".join(b'"%x":0' % i for i in range(700_000)) + b"}"
    yield "many.safetensors", header(tiny[: 8 * 2**20]), "holds more than 250000 values"
    yield "zeros.safetensors", bytes(4096), "does not begin with a brace|goes beyond"
    yield "zero-axis.safetensors", header(fields(a=entry([2**62, 2**62, 0], [0, 0]))), "no tensor can have the shape"
    counting = ("to_patch_embedding.2.weight", "pos_embedding", f"transformer.layers.{10**12}.0.norm.weight")
    one_each = {name: entry([1, 1], [4 * place, 4 * place + 4]) for place, name in enumerate(counting)}
    yield (
        "block-10-12.safetensors",
        header(json.dumps(one_each), bytes(12)),
        r"at most 256 blocks.*layers\.1000000000000;",
    )
    nan = struct.pack("<f", float("nan"))
    yield (
        "nan.safetensors",
        header(fields(cls_token=two), nan),
        "layout|finite",
    )  # refused as no model before its numbers


def sparse(folder: Path) -> Iterator[Case]:
    """Files that look large and take no room on the disk."""
    with (folder / "header-100mb.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 100 * 2**20 + 1) + b'{"a":{}')
        file.truncate(120 * 2**20)
    yield Case("header-100mb.safetensors", "its header has 104857601 bytes, at most 8388608 are read")
    with (folder / "far.pt").open("wb") as file:
        file.write(b"\x80\x02c")
        file.truncate(4 * 2**30)
    yield Case("far.pt", "is not a whole PyTorch weights file")


def others() -> Made:
    """Containers that hold no weights readable here."""
    yield "seven.pt", b"7z\xbc\xaf\x27\x1c" + bytes(100), "is a 7z archive"
    yield "packed.pth", b"\x1f\x8b\x08" + bytes(100), "is packed with gzip"
    yield "pointer.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer.*git lfs pull"
    yield "page.bin", b"<!DOCTYPE html><html>401</html>", "is a web page"
    yield "keras.pt", b"\x89HDF\r\n\x1a\n" + bytes(100), "is an HDF5 file"
    yield "empty.safetensors", b"", "is empty"
    yield "empty.pt", b"", "is empty"


PLAIN = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 8, "patch_size": 4}
"""What the configurations below begin with."""


def configs(folder: Path) -> Iterator[Case]:
    """Folders whose config.json lies; the weights beside it are whole."""

    def put(name: str, text: str, words: str) -> Case:
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_bytes(header(fields(a=entry([1], [0, 4])), bytes(4)))
        (folder / name / "config.json").write_text(text)
        return Case(name, words)

    def said(**more: object) -> str:
        return json.dumps({**PLAIN, **more})

    yield put("config-deep", '{"model_type":"vit","a":' + "[" * 10_000, "nested deeper than 64")
    yield put("config-twice", said()[:-1] + ',"patch_size":4}', "says 'patch_size' twice")
    yield put("config-nan", said()[:-1] + ',"layer_norm_eps":NaN}', "holds NaN")
    yield put("config-infinite", said()[:-1] + ',"layer_norm_eps":1e999}', "holds 1e999")
    yield put("config-digits", said()[:-1] + ',"depth":' + "9" * 5000 + "}", "a whole number of 5000 digits")
    yield put("config-layers", said(num_hidden_layers=10**9), r"num_hidden_layers must be a number from 1 to 256")
    yield put("config-patch", said(patch_size=0), r"patch_size must be a number from 1 to 1,024\. Got 0")
    yield put("config-negative", said(hidden_size=-8), "hidden_size must be a number from 1 to 65,536")
    yield put("config-size", said(image_size=[10**9, 1]), "image_size must be a number from 1 to 16,384")
    yield put("config-inside", said(vision_config={"hidden_size": 2**40}), r"vision_config\.hidden_size must be")
    yield put("config-stages", said(hidden_size=[8, 16]), "hidden_size must be a number from 1 to 65,536")
    yield put("config-nothing", said(image_size=[]), "image_size must be a number from 1 to 16,384")
    yield put("config-list", "[]", "must hold a JSON object")
    big = put("config-1gb", '{"model_type":"', "has 1073741824 bytes; at most 16777216 are read")
    os.truncate(folder / big.name / "config.json", 2**30)
    yield big


def special(folder: Path) -> Iterator[Case]:
    """Things that are no files."""
    (folder / "folder.pt").mkdir()
    yield Case("folder.pt", "bundle|holds no weights|no plain file|config.json")
    os.mkfifo(folder / "pipe.safetensors")
    yield Case("pipe.safetensors", "no plain file")
    (folder / "dangling.pt").symlink_to(folder / "nowhere")
    yield Case("dangling.pt", "There is no weights file")


def open_all(folder: Path, names: list[str]) -> Iterator[dict[str, object]]:
    """What became of each file: the kind of error, its words, seconds, and MiB at the highest point."""
    from vitrail.checkpoints.load import load_checkpoint

    for name in names:
        before = peak(reset=True)
        start = time.process_time()
        try:
            load_checkpoint(folder / name)
            kind, words = "loaded", ""
        except Exception as error:
            kind, words = type(error).__name__, str(error)
        seconds = time.process_time() - start
        yield {"name": name, "kind": kind, "words": words, "seconds": seconds, "mebibytes": peak() - before}


if __name__ == "__main__":
    there = Path(sys.argv[1])
    for answer in open_all(there, json.loads(sys.stdin.read())):
        print(json.dumps(answer), flush=True)
