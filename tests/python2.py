"""Pickles as Python 2 wrote them, in which CIFAR was published: texts are runs of bytes, and so are arrays."""

from __future__ import annotations

import struct

import numpy as np


def pickled(value: object) -> bytes:
    """Protocol 2, with Python 2's opcodes."""
    return b"\x80\x02" + _body(value) + b"."


def _body(value: object) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_body(key) + _body(each) for key, each in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_body, value)) + b"e"
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        short = len(data) < 256
        return (b"U" + bytes([len(data)]) if short else b"T" + struct.pack("<i", len(data))) + data
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    assert isinstance(value, np.ndarray)
    return _array(value)


def _array(array: np.ndarray) -> bytes:
    kind = array.dtype.str[1:]
    order = {"|": "|", "<": "<", ">": ">"}[array.dtype.str[0]]
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
    state = b"(K\x03" + _body(order) + b"NNN" + 2 * _body(-1) + b"K\x00tb"
    dtype = b"cnumpy\ndtype\n(" + _body(kind) + b"K\x00K\x01tR" + state
    shape = b"(" + b"".join(map(_body, array.shape)) + b"t"
    return made + b"(K\x01" + shape + dtype + b"\x89" + _body(array.tobytes()) + b"tb"
