"""The machine gives what Python's own reader gives for plain values, and only names for anything else."""

from __future__ import annotations

import argparse
import datetime
import io
import pathlib
import pickle
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.files.pickle_vm import BrokenPickleError, InertObject, PickledName, PickleMachine

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inside: (
        st.lists(inside, max_size=4)
        | st.tuples(inside)
        | st.tuples(inside, inside)
        | st.lists(inside, max_size=5).map(tuple)
        | st.dictionaries(st.text(), inside, max_size=4)
    ),
    max_leaves=20,
)


def run(data: bytes, functions=None):
    machine = PickleMachine(functions or {}, lambda arguments: ("outside", *arguments))
    return machine.run(io.BytesIO(data)), list(machine.names)


@given(value=PLAIN, protocol=st.sampled_from([3, 4, 5]))
def test_plain_values_come_back_as_from_pythons_own_reader(value, protocol):
    assert run(pickle.dumps(value, protocol)) == (value, [])


@given(
    value=st.lists(st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text())
)
@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_the_old_protocols_too(value, protocol):
    assert run(pickle.dumps(value, protocol)) == (value, [])


def test_shared_and_circular_values_are_tied_as_they_were():
    inner: list = []
    inner.append(inner)
    value, _ = run(pickle.dumps([inner, inner]))
    assert value[0] is value[1] and value[0][0] is value[0]


def test_sets_come_out_as_lists():
    assert run(pickle.dumps({1}, 4))[0] == [1]
    assert run(pickle.dumps(frozenset({1}), 4))[0] == [1]
    assert run(pickle.dumps(bytearray(b"ab"), 5))[0] == b"ab"


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (argparse.Namespace(rate=0.1), "argparse.Namespace"),
        (datetime.date(2020, 1, 1), "datetime.date"),
        (pathlib.PurePosixPath("a"), "pathlib.PurePosixPath"),
        (OrderedDict(a=1), "collections.OrderedDict"),
    ],
)
def test_an_object_is_inert_and_named(value, name, protocol):
    found, names = run(pickle.dumps([value], protocol))
    assert isinstance(found[0], InertObject) and any(word in names for word in (name, "copy_reg._reconstructor"))


def test_a_class_alone_is_a_name():
    assert run(pickle.dumps(OrderedDict, 2)) == (PickledName("collections.OrderedDict"), ["collections.OrderedDict"])


def test_calls_go_to_the_table_and_nowhere_else():
    data = pickle.dumps(OrderedDict(a=1), 2)
    assert run(data, {"collections.OrderedDict": lambda arguments: {}})[0] == {"a": 1}


def test_a_persistent_id_goes_to_its_function():
    assert run(b"\x80\x02K\x07Q.") == (("outside", 7), [])
    assert run(b"Pseven\n.") == (("outside", "seven"), [])


def test_the_position_moves_behind_the_pickle():
    file = io.BytesIO(pickle.dumps(1) + pickle.dumps(2))
    machine = PickleMachine({}, lambda arguments: None)
    assert [machine.run(file), machine.run(file)] == [1, 2]


def test_names_behind_the_place_where_it_breaks_are_noted_too():
    machine = PickleMachine({}, lambda arguments: None)
    with pytest.raises(BrokenPickleError, match="malformed, IndexError"):
        machine.run(io.BytesIO(b"cos\nmkdir\n00ccopy\ncopy\nX\x02\x00\x00\x00osX\x05\x00\x00\x00rmdir\x93."))
    assert list(machine.names) == ["os.mkdir", "copy.copy", "os.rmdir"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "malformed|no end"),
        (b"\x80\x02", "malformed|no end"),
        (b".", "malformed, IndexError"),
        (b"h\x05.", "malformed, KeyError"),
        (b"}K\x01u.", "malformed, IndexError"),
        (b"}(K\x01u.", "a key has no value"),
        (b"](K\x01K\x02u.", "sets an item of a list"),
        (b"}K\x01a.", "appends to a dict"),
        (b"}]K\x01s.", "a key is a list"),
        (b"}\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01K\x01s.", "a key is a int"),
        (b"K\x01K\x02R.", "calls something that is no name"),
        (b"K\x01\x86.", "its stack is empty"),
        (b"K\x01K\x02\x93.", "names something without a name"),
        (b"\x82\x01.", "uses EXT1"),
        (b"c" + b"x" * 128 + b"\n" + b"y" * 128 + b"\n.", "whose name has more than 256 letters"),
        (b"\x98.", "uses READONLY_BUFFER"),
    ],
)
def test_what_is_no_pickle_of_values_is_broken(data, words):
    with pytest.raises(BrokenPickleError, match=words):
        run(data)
