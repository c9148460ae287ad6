"""What a decoding process makes of bytes: every kind of the corpus, tensors, and what it may not take."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from corpus.all_cases import CASES
from corpus.writing import png16
from exportable import pictures
from vitrail.data.preprocess import preprocess_image
from vitrail.serve.decode_worker import handle_request
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=16, width=24, channels=3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_e5_every_kind_of_file_gets_its_status(case):
    """E5: the tabled one, and if it is a picture the same bytes as behind every other door (E23)."""
    spec = ImageSpec(height=16, width=24, channels=3, low=case.low, high=case.high)
    data = case.make()
    reply = handle_request("picture", data, spec, 1)
    assert reply.status == case.status, reply.text
    if case.status == 200:
        made = torch.frombuffer(bytearray(reply.pixels), dtype=torch.uint8).view(3, 16, 24)
        assert torch.equal(made, preprocess_image(data, spec))
        said = json.loads(reply.text)
        assert isinstance(said["remarks"], list) and min(said["seen"]) > 0
    else:
        assert reply.text and reply.pixels == b""


def request(images: np.ndarray, **changes: object) -> dict[str, object]:
    one = {"name": "images", "datatype": "UINT8", "shape": list(images.shape), "data": images.ravel().tolist()}
    return {"id": "7", "inputs": [{**one, **changes}], "outputs": [{"name": "logits"}]}


@pytest.mark.parametrize("nested", [False, True])
def test_tensors_come_through_flat_and_nested(nested):
    images = pictures(SPEC, 3)
    asked = request(images, data=images.tolist()) if nested else request(images)
    reply = handle_request("tensor", json.dumps(asked).encode(), SPEC, 3)
    assert reply.status == 200, reply.text
    found = np.frombuffer(reply.pixels, np.uint8).reshape(3, 3, 16, 24)
    np.testing.assert_array_equal(found, images.transpose(0, 3, 1, 2))
    assert json.loads(reply.text) == {"id": "7", "outputs": ["logits"]}


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        (b"{", 422, "must be JSON"),
        (b"[" * 100_000, 422, "must be JSON"),
        (b"\xff\xfe\x00", 422, "must be JSON"),
        (b"{}", 422, 'The body must be {"inputs"'),
        (json.dumps(request(pictures(SPEC, 1), name="x")).encode(), 422, "Got x, UINT8"),
        (json.dumps(request(pictures(SPEC, 1), datatype="FP32")).encode(), 422, "Got images, FP32"),
        (json.dumps(request(pictures(SPEC, 1), shape=[1, 24, 16, 3])).encode(), 422, r"[1, 24, 16, 3]"),
        (json.dumps(request(pictures(SPEC, 1), shape=[])).encode(), 422, "Got images, UINT8 []"),
        (json.dumps(request(pictures(SPEC, 1), shape=[True, 16, 24, 3])).encode(), 422, "Got images, UINT8 [True"),
        (json.dumps(request(pictures(SPEC, 1), shape=[2, 16, 24, 3])).encode(), 422, "2,304 numbers"),
        (json.dumps(request(pictures(SPEC, 1), shape=[99, 16, 24, 3])).encode(), 413, "may hold 3 pictures. Got 99"),
        (json.dumps(request(pictures(SPEC, 1), data=[[1, 2], [3]])).encode(), 422, "lists of equal lengths"),
        (json.dumps(request(pictures(SPEC, 1), data=[300] * 1152)).encode(), 422, "from 0 to 255"),
        (json.dumps(request(pictures(SPEC, 1), data=[0.5] * 1152)).encode(), 422, "from 0 to 255"),
        (json.dumps(request(pictures(SPEC, 1), data=["1"] * 1152)).encode(), 422, "from 0 to 255"),
        (json.dumps({**request(pictures(SPEC, 1)), "outputs": ["logits"]}).encode(), 422, "outputs must be a list"),
    ],
    ids=range(16),
)
def test_requests_that_are_none_are_refused_in_a_sentence(asked, status, said):
    reply = handle_request("tensor", asked, SPEC, 3)
    assert (reply.status, reply.pixels) == (status, b"") and said in reply.text


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited on Linux only")
def test_e10_a_picture_that_needs_more_memory_than_allowed_is_refused_and_the_process_lives():
    """E10."""
    script = """
import io, socket, threading
from PIL import Image
from vitrail.serve.decode_worker import INPUT_KINDS, REPLY_HEADER, REQUEST_HEADER, run_worker
from vitrail.spec import ImageSpec
ours, theirs = socket.socketpair()
def ask(data):
    threading.Thread(target=ours.sendall, args=(REQUEST_HEADER.pack(0, len(data)) + data,)).start()
    status, words, pixels = REPLY_HEADER.unpack(ours.recv(REPLY_HEADER.size, socket.MSG_WAITALL))
    return status, ours.recv(words, socket.MSG_WAITALL), ours.recv(pixels, socket.MSG_WAITALL)
def png(side):
    data = io.BytesIO()
    Image.new("RGB", (side, side), (9, 9, 9)).save(data, "PNG", compress_level=1)
    return data.getvalue()
def talk():
    print([ask(png(side))[:2] for side in (6000, 40)])
    ours.close()
large = png(6000)
thread = threading.Thread(target=talk)
thread.start()
run_worker(theirs, ImageSpec(height=8, width=8), 150 * 2**20, 1)
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == (
        "[(413, b'the picture needs more memory than a decoding process may take; send a smaller one.'), "
        '(200, b\'{"remarks": [], "size": [40, 40], "seen": [40.0, 40.0]}\')]\n'
    ), done.stderr


DEEP = ImageSpec(height=16, width=24, channels=1, high=4095, bit_depth=16)


def test_pictures_of_16_bits_come_through_whole():
    film = np.random.default_rng(0).integers(0, 4096, (20, 30, 1), np.uint16)
    reply = handle_request("picture", png16(film), DEEP, 1)
    made = np.frombuffer(reply.pixels, np.uint16).reshape(1, 16, 24)
    np.testing.assert_array_equal(made, preprocess_image(film, DEEP).numpy())
    assert len(np.unique(made)) > 300


def test_tensors_of_16_bits_are_asked_for_by_their_name():
    images = np.random.default_rng(0).integers(0, 65536, (2, 16, 24, 1), np.uint16)
    reply = handle_request("tensor", json.dumps(request(images, datatype="UINT16")).encode(), DEEP, 3)
    assert reply.status == 200, reply.text
    found = np.frombuffer(reply.pixels, np.uint16).reshape(2, 1, 16, 24)
    np.testing.assert_array_equal(found, images.transpose(0, 3, 1, 2))
    reply = handle_request("tensor", json.dumps(request(images)).encode(), DEEP, 3)
    assert reply.status == 422 and "The one input is images, UINT16 [B, 16, 24, 1]" in reply.text
    asked = request(images, datatype="UINT16", data=[65536] * images.size)
    reply = handle_request("tensor", json.dumps(asked).encode(), DEEP, 3)
    assert (reply.status, reply.text) == (422, "data of UINT16 must be whole numbers from 0 to 65535.")
