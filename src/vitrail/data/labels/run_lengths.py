"""Run lengths of masks: a class map as text, COCO's runs as list and text, and those of Label Studio's brush."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, UInt8

from ...errors import DataError

RUNS_PREFIX = "runs:"
"""Begins the text of a class map, in the place of a file's name."""
_STEP_BITS, _STEP_MASK, _MORE, _SIGN, _FIRST_LETTER = 5, 0x1F, 0x20, 0x10, 48


def encode_class_map(classes: UInt8[np.ndarray, "H W"]) -> str:
    """The rows of a class map one after another, as the text runs:HEIGHTxWIDTH:class*length,class*length,..."""
    flat = classes.ravel()
    starts = np.flatnonzero(np.append(True, flat[1:] != flat[:-1])) if len(flat) else np.zeros(0, np.int64)
    lengths = np.diff(np.append(starts, len(flat)))
    runs = (f"{value}*{length}" for value, length in zip(flat[starts].tolist(), lengths.tolist(), strict=True))
    return f"{RUNS_PREFIX}{classes.shape[0]}x{classes.shape[1]}:{','.join(runs)}"


def decode_class_map(text: str) -> UInt8[np.ndarray, "H W"]:
    """The class map that `encode_class_map` wrote."""
    size, _, runs = text.removeprefix(RUNS_PREFIX).partition(":")
    height, width = map(int, size.split("x"))
    pairs = np.array([run.split("*") for run in runs.split(",")], np.int64)
    return np.repeat(pairs[:, 0].astype(np.uint8), pairs[:, 1]).reshape(height, width)


# -- COCO: runs of pixels outside and inside in turn, column by column


def encode_coco_counts(mask: Bool[np.ndarray, "H W"]) -> list[int]:
    """The runs of a mask, the first one outside."""
    flat = mask.T.ravel()
    ends = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts: list[int] = np.diff([0, *ends.tolist(), len(flat)]).tolist()
    return [0, *counts] if len(flat) and flat[0] else counts


def decode_coco_counts(counts: Sequence[int] | str, size: tuple[int, int], where: str) -> Bool[np.ndarray, "H W"]:
    """The mask of a list of runs, or of its compressed text.

    Raises:
        DataError: the runs do not fill the size.
    """
    runs = np.array(decompress_counts(counts, where) if isinstance(counts, str) else counts, np.int64)
    if runs.ndim != 1 or (runs < 0).any() or runs.sum() != size[0] * size[1]:
        raise DataError(
            f"{where}: the runs of a mask must add up to the pixels of its picture, {size[0]} x {size[1]}. They are "
            f"{int(runs.sum()):,}."
        )
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(size[1], size[0]).T


def compress_counts(counts: Sequence[int]) -> str:
    """COCO's text of runs: each less the one before the last, in groups of five bits from the lowest."""
    letters = []
    for place, count in enumerate(counts):
        rest, more = count - (counts[place - 2] if place > 2 else 0), True
        while more:
            group, rest = rest & _STEP_MASK, rest >> _STEP_BITS
            more = rest != (-1 if group & _SIGN else 0)
            letters.append(chr(_FIRST_LETTER + (group | _MORE * more)))
    return "".join(letters)


def decompress_counts(text: str, where: str) -> list[int]:
    """The runs of COCO's text.

    Raises:
        DataError: it ends within a run, or has a letter of no meaning.
    """
    counts: list[int] = []
    number = shift = 0
    is_complete = True
    for letter in text:
        group = ord(letter) - _FIRST_LETTER
        if not 0 <= group < 2 * _MORE:
            raise DataError(f"{where}: the compressed runs of a mask have the letter {letter!r}, which has no meaning.")
        number |= (group & _STEP_MASK) << shift
        shift += _STEP_BITS
        is_complete = not group & _MORE
        if is_complete:
            number -= (1 << shift) * bool(group & _SIGN)
            counts.append(number + (counts[-2] if len(counts) > 2 else 0))
            number = shift = 0
    if not is_complete:
        raise DataError(f"{where}: the compressed runs of a mask end too early.")
    return counts


# -- Label Studio's brush: bits of an RGBA picture, of which the opacity is the mask


def decode_brush(values: Sequence[int], size: tuple[int, int], where: str) -> Bool[np.ndarray, "H W"]:
    """The mask of a brush: bytes that hold a count, a word size and four run sizes in bits, then runs of one word
    (1, a run size, a length, the word) or of several (0, a run size, a length, the words).

    Raises:
        DataError: the bytes end too early, or are of another size.
    """
    try:
        bits = np.unpackbits(np.array(values, np.uint8))
    except (OverflowError, ValueError, TypeError) as error:
        raise DataError(f"{where}: the runs of a brush must be bytes.") from error
    place = 0

    def read(count: int) -> int:
        nonlocal place
        if place + count > len(bits):
            raise DataError(f"{where}: the runs of a brush end too early.")
        place += count
        return int("".join(map(str, bits[place - count : place].tolist())) or "0", 2)

    total, word = read(32), read(5) + 1
    sizes = [read(4) + 1 for _ in range(4)]
    if total != 4 * size[0] * size[1] or word > 8:
        raise DataError(
            f"{where}: the runs of a brush are of {total // 4:,} pixels, and its picture has {size[0]} x {size[1]}."
        )
    found = np.zeros(total, np.uint8)
    at = 0
    while at < total:
        is_run = read(1)
        end = min(at + read(sizes[read(2)]) + 1, total)
        if is_run:
            found[at:end] = read(word)
        else:
            count = (end - at) * word
            if place + count > len(bits):
                raise DataError(f"{where}: the runs of a brush end too early.")
            words = bits[place : place + count].reshape(-1, word)
            found[at:end] = words @ (1 << np.arange(word)[::-1])
            place += count
        at = end
    return found.reshape(*size, 4)[..., 3] > 0
