"""The decoding process: untrusted bytes to preprocessed images, isolated from the server.

Requests and replies are plain bytes over a socket; the server never unpickles anything from such a process.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import struct
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Integer, UInt
from torch import Tensor

from ..data.decoding.decode import convert_image, parse_image
from ..data.preprocess import fit_array_to_tensor, visible_size
from ..errors import DataError, NotAnImageError, TooLargeError
from ..formatting import format_count
from ..predict.exported import INPUT_NAME
from ..spec import ImageSpec

InputKind = Literal["picture", "tensor"]
INPUT_KINDS: tuple[InputKind, ...] = ("picture", "tensor")
REQUEST_HEADER = struct.Struct("<BQ")
"""Index of the kind in INPUT_KINDS, and the length of the body."""
REPLY_HEADER = struct.Struct("<HIQ")
"""HTTP status, length of the text, and length of the pixels; text and pixels follow."""


class DecodeReply(NamedTuple):
    """The reply to one request."""

    status: int
    """HTTP status; 200 if there are pixels."""
    text: str
    """The error; or a JSON object with an image's remarks and visible size, or a tensor request's id and outputs."""
    pixels: bytes
    """[n, C, h, w] in the spec's type."""


def run_worker(channel: socket.socket, spec: ImageSpec, max_memory: int, max_images: int) -> None:
    """Main function of the process: handle requests until the other end closes the channel."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server decides when its images are done
    torch.set_num_threads(1)
    _limit_memory(max_memory)
    while (request := _receive_request(channel)) is not None:
        kind, body = request
        reply = handle_request(kind, body, spec, max_images)
        text = reply.text.encode("utf-8", "replace")
        channel.sendall(REPLY_HEADER.pack(reply.status, len(text), len(reply.pixels)) + text)
        channel.sendall(reply.pixels)


def handle_request(kind: InputKind, body: bytes, spec: ImageSpec, max_images: int) -> DecodeReply:
    """Decode one image, or the tensor of an inference request.

    Args:
        max_images: most images in one tensor.
    """
    try:
        if kind == "tensor":
            images, info = read_tensor(body, spec, max_images)
            return DecodeReply(200, json.dumps(info), images.tobytes())
        image, info = read_image(body, spec)
        return DecodeReply(200, json.dumps(info), image.numpy().tobytes())
    except DataError as problem:
        return DecodeReply(_http_status(problem), str(problem), b"")
    except (MemoryError, RuntimeError) as problem:
        if isinstance(problem, RuntimeError) and "memory" not in str(problem):  # torch has no class for it on a CPU
            raise
        return DecodeReply(
            413, "the picture needs more memory than a decoding process may take; send a smaller one.", b""
        )


def read_image(data: bytes, spec: ImageSpec) -> tuple[Integer[Tensor, "C h w"], dict[str, Any]]:
    """Decode and preprocess one image file.

    Returns:
        The image; `remarks` about the file, its `size`, and `seen`, the rows and columns of its own pixels that the
        model sees.

    Raises:
        DataError: as `data.decoding.decode.decode_image`.
    """
    stored = parse_image(data, spec)
    values = convert_image(stored, spec)
    return fit_array_to_tensor(values, spec), {
        "remarks": stored.remarks,
        "size": values.shape[:2],
        "seen": visible_size(values.shape[0], values.shape[1], spec),
    }


def read_tensor(data: bytes, spec: ImageSpec, max_images: int) -> tuple[UInt[np.ndarray, "B C H W"], dict[str, Any]]:
    """Parse an Open Inference Protocol request in JSON: images UINT8 or UINT16 [B, H, W, C] at the model's size.

    Returns:
        The images with channels first; the request's `id` and the names of its `outputs`.

    Raises:
        DataError: a malformed request; the message says what is wrong with it.
    """
    datatype = spec.dtype.upper()
    try:
        request = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"The body must be JSON. {problem}.") from problem
    match request:
        case {"inputs": [{"name": str(name), "shape": [*shape], "datatype": str(kind), "data": [*data_]}]}:
            pass
        case _:
            raise DataError(
                f'The body must be {{"inputs": [{{"name": "{INPUT_NAME}", "shape": [B, {spec.height}, {spec.width}, '
                f'{spec.channels}], "datatype": "{datatype}", "data": [...]}}]}}.'
            )
    expected = [spec.height, spec.width, spec.channels]
    if name != INPUT_NAME or kind != datatype or shape[1:] != expected or type(shape[0]) is not int or shape[0] < 1:
        raise DataError(
            f"The one input is {INPUT_NAME}, {datatype} [B, {', '.join(map(str, expected))}]. Got {name[:40]}, "
            f"{kind[:20]} {str(shape)[:60]}."
        )
    if shape[0] > max_images:
        raise TooLargeError(f"One request may hold {max_images} pictures. Got {shape[0]:,}.")
    outputs = request.get("outputs", [])
    if not isinstance(outputs, list) or not all(isinstance(one, dict) and "name" in one for one in outputs):
        raise DataError('outputs must be a list such as [{"name": "probabilities"}].')
    images = _parse_levels(data_, tuple(shape), spec).transpose(0, 3, 1, 2)
    names = [str(one["name"])[:40] for one in outputs]
    return np.ascontiguousarray(images), {"id": str(request.get("id", ""))[:200], "outputs": names}


def _parse_levels(data: list[Any], shape: tuple[int, ...], spec: ImageSpec) -> UInt[np.ndarray, "B H W C"]:
    """An array from a flat list or lists nested by axes, row-major, of whole numbers 0 to white."""
    try:
        values = np.array(data)
    except ValueError as problem:
        raise DataError("data must be one list of numbers, or lists in lists of equal lengths.") from problem
    if values.size != math.prod(shape) or (values.ndim > 1 and values.shape != shape):
        raise DataError(
            f"data must hold {format_count(math.prod(shape), 'number')} for shape {list(shape)}. Got {values.size:,}."
        )
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > spec.white:
        raise DataError(f"data of {spec.dtype.upper()} must be whole numbers from 0 to {spec.white}.")
    return values.reshape(shape).astype(spec.dtype)


def _http_status(problem: DataError) -> int:
    if isinstance(problem, NotAnImageError):
        return 415
    return 413 if isinstance(problem, TooLargeError) else 422


def _limit_memory(num_bytes: int) -> None:
    """Limit the address space to its current size plus `num_bytes` (Linux only)."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        import resource

        now = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + num_bytes, resource.RLIM_INFINITY))


def _receive_request(channel: socket.socket) -> tuple[InputKind, bytes] | None:
    head = _receive_exactly(channel, REQUEST_HEADER.size)
    if head is None:
        return None
    place, length = REQUEST_HEADER.unpack(head)
    body = _receive_exactly(channel, length)
    return None if body is None else (INPUT_KINDS[place], bytes(body))


def _receive_exactly(channel: socket.socket, length: int) -> bytearray | None:
    """Receive `length` bytes; None if the other end has closed."""
    data = bytearray(length)
    view, received = memoryview(data), 0
    while received < length:
        count = channel.recv_into(view[received:])
        if count == 0:
            return None
        received += count
    return data
