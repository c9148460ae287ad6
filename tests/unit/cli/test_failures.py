from __future__ import annotations

import errno

import pytest

from vitrail.cli.main import describe_failure
from vitrail.errors import (
    DamagedFileError,
    DataError,
    DivergedError,
    InterruptedRun,
    PeerError,
    ResourceError,
    UsageError,
    WorkerError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError, 2),
        (DataError, 3),
        (DamagedFileError, 4),
        (ResourceError, 5),
        (DivergedError, 6),
        (WorkerError, 7),
        (PeerError, 7),
    ],
)
def test_each_error_of_the_family_keeps_its_words_and_its_code(error, code):
    assert describe_failure(error("This is why.\nAnd what to do.")) == ("This is why. And what to do.", code)


def test_an_interrupted_run_says_how_it_ended():
    assert describe_failure(InterruptedRun("Saved.")).code == 130
    assert describe_failure(InterruptedRun("Saved.", 143)).code == 143


def test_ctrl_c_before_anything_is_saved_says_so():
    assert describe_failure(KeyboardInterrupt()) == ("Interrupted; nothing was saved yet.", 130)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 99 bytes")],
)
def test_a_full_memory_is_told_with_what_to_make_smaller(error):
    message, code = describe_failure(error)
    assert code == 5 and message.startswith("The memory is full. Use a smaller --recipe.batch_size")


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EACCES, "permission is missing")]
)
def test_what_the_operating_system_refuses_is_told_in_words(number, words):
    assert describe_failure(OSError(number, "x", "a/b")) == (f"Cannot go on at a/b: {words}.", 5)
    assert describe_failure(OSError(number, "x")) == (f"Cannot go on: {words}.", 5)


def test_the_unforeseen_asks_for_debug():
    message, code = describe_failure(KeyError("qkv"))
    assert code == 1
    assert message == (
        "Something went wrong inside Vitrail that nobody foresaw: KeyError: 'qkv'. "
        "Run the same command with --debug and report what it prints."
    )


def test_nothing_in_a_message_reaches_the_terminal_as_a_command():
    told = describe_failure(DataError("bad\x1b[31m name\u202e.png\nsecond line"))
    assert told.message == "bad\\x1b[31m name\\u202e.png second line"
