"""Forms: what is found in them, and what is no form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from served import form
from vitrail.serve.http_errors import HttpError
from vitrail.serve.protocols import is_form, parse_form_files

KIND = b"multipart/form-data; boundary=edge"


def files(body: bytes, kind: bytes = KIND, most: int = 10) -> list[tuple[str, bytes]]:
    return [(part.name, bytes(part.data)) for part in parse_form_files(bytearray(body), kind, most)]


@given(st.lists(st.tuples(st.sampled_from(["a.png", "ü b.jpg", "x;y.gif"]), st.binary(max_size=60)), max_size=6))
def test_every_file_comes_out_as_it_went_in(pictures):
    body, headers = form(*pictures)
    assert files(body, headers["Content-Type"].encode()) == pictures


def test_contents_that_look_like_edges_stay_contents():
    pictures = [("a", b"--a-boundary"), ("b", b"\r\n--a-boundary-of-our-ow"), ("c", b"\r\n\r\n"), ("d", b"")]
    body, headers = form(*pictures)
    assert files(body, headers["Content-Type"].encode()) == pictures


def test_fields_are_left_out_and_a_preamble_is_skipped():
    field = b'--edge\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n'
    file = (
        b'--edge\r\ncontent-disposition: form-data; name="p"; filename="a.png"\r\nContent-Type: image/png\r\n\r\nX\r\n'
    )
    assert files(b"to whom it may concern\r\n" + field + file + b"--edge--\r\n") == [("a.png", b"X")]


def test_forms_are_known_by_their_type():
    assert is_form(b"Multipart/Form-Data; boundary=x") and not is_form(b"image/png") and not is_form(b"")


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"--edge--\r\n", b"multipart/form-data", "names no boundary"),
        (b"--edge--\r\n", b"multipart/form-data; boundary=" + b"x" * 300, "names no boundary"),
        (b"", KIND, "does not begin with its boundary"),
        (b"something else", KIND, "does not begin with its boundary"),
        (b"--edge\r\nContent-Disposition: form-data; filename=a\r\n\r\nX", KIND, "ends in the middle"),
        (b"--edge\r\n" + b"a" * 9000 + b"\r\n\r\nX\r\n--edge--", KIND, "has no head"),
        (b"--edgeX", KIND, "has no head"),
    ],
)
def test_what_is_no_form_is_refused(body, kind, said):
    with pytest.raises(HttpError, match=said) as refused:
        files(body, kind)
    assert refused.value.status == 400


def test_more_parts_than_allowed_are_refused():
    body, headers = form(*[(f"{n}.png", b"x") for n in range(11)])
    with pytest.raises(HttpError, match=r"may have 10 parts") as refused:
        files(body, headers["Content-Type"].encode())
    assert refused.value.status == 413
    body, headers = form(*[(f"{n}.png", b"x") for n in range(10)])
    assert len(files(body, headers["Content-Type"].encode())) == 10
