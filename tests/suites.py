"""How a run of the tests is divided and counted: which are wide, which share a worker, and the seconds of each file.

Two workers of pytest-xdist (`-n 2`) share the tests file by file, so that a fixture of a file is made once. Files whose
tests compare times or need more than one processor say `pytestmark = pytest.mark.serial`: one worker runs all of these.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

FURTHER = pytest.StashKey[bool]()
"""Of an item: whether it is a further case of a slow test."""
WORKER = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this process is one of several, whose reports go to another that counts."""
FIXED_WORK = 0.006
"""Seconds of `pace`'s work on the machine where the limit of `make test` was set, nothing else running."""
NOISE = 1.5
"""So many times its limit a file may take before the run fails: the same file took 7 and 11 seconds on one machine."""
NAMED = 12
"""So many files are named after the suites: where the time goes."""
SERIAL = re.compile(r"(?m)^pytestmark = .*\bserial\b")
"""How a file says that one worker runs it and its like: the process that shares them out sees no markers."""


def own_seconds() -> float:
    """Processor time of this process and of those of its children that have ended."""
    try:
        import resource
    except ImportError:  # not on Windows
        return time.process_time()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def pace() -> float:
    """How many times as long as `FIXED_WORK` a fixed piece of Python takes here and now, in processor time."""
    before, total = time.process_time(), 0
    for number in range(100_000):
        total += number * number % 7
    return (time.process_time() - before) / FIXED_WORK


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@functools.cache
def together(file: Path) -> str:
    """What one worker runs without a break: the tests of a file, or those of all files that say `serial`."""
    return "serial" if file.is_file() and SERIAL.search(file.read_text(encoding="utf-8")) else str(file)


class Division:
    """Which tests are wide, and which worker runs what."""

    @pytest.hookimpl(tryfirst=True)  # before `-m` chooses
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seen: Counter[str] = Counter()
        shown: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        for item in items:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            first, slow = item.get_closest_marker("first"), item.get_closest_marker("slow") is not None
            further = first is not None and seen[test] > first.args[0]
            if item.get_closest_marker("each_value") is not None:
                values = {(name, id(value)) for name, value in item.callspec.params.items()}
                further = values <= shown[test]
                shown[test] |= values
            if slow or further:
                item.add_marker(pytest.mark.wide)
            item.stash[FURTHER] = slow and seen[test] > 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> object:
        """Files in their order, end_to_end first and the many short ones of unit last.

        Not xdist's own `loadgroup`: its release 3.8.0 writes a group into an attribute that pytest 9 no longer reads.
        """
        from xdist.scheduler import LoadScopeScheduling

        class ByFile(LoadScopeScheduling):
            def _split_scope(self, nodeid: str) -> str:
                return together(config.rootpath / file_of(nodeid))

        config.option.loadscopereorder = False
        return ByFile(config, log)


class Seconds:
    """How many tests ran and for how long, suite by suite and file by file; a file may have a limit.

    A file's seconds are processor time, of its tests and fixtures and of the processes that they started and saw end;
    they are never more than those of the clock. They are divided by how much slower than usual this machine was
    meanwhile. So neither another program on the machine nor a slower machine makes a file fail. What only waits is not
    seen: the clock's seconds stand beside them.
    """

    def __init__(self, file: str | None, limit: float | None):
        self.path, self.limit = file, limit
        self.before, self.here = 0.0, ""
        self.paces: list[float] = []
        self.clock: defaultdict[str, float] = defaultdict(float)
        self.used: defaultdict[str, float] = defaultdict(float)
        self.tests: Counter[str] = Counter()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.before = own_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = own_seconds()
        report.seconds, self.before = now - self.before, now
        if report.when == "teardown" and self.here != file_of(item.nodeid):
            self.here, report.pace = file_of(item.nodeid), pace()
            self.before = own_seconds()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self.clock[file] += report.duration
        self.used[file] += getattr(report, "seconds", 0.0)  # a worker that died tells none
        self.tests[file] += report.when == "call"
        self.paces += [report.pace] if hasattr(report, "pace") else []

    @property
    def slowness(self) -> float:
        """How many times slower than usual this machine was."""
        return max(1.0, statistics.median(self.paces)) if self.paces else 1.0

    def seconds(self) -> dict[str, float]:
        """Of every file, the longest first."""
        found = {file: min(self.used[file], clock) / self.slowness for file, clock in self.clock.items()}
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    def above(self, factor: float = 1.0) -> list[str]:
        """The files that take longer than `factor` times their limit."""
        limit = math.inf if self.limit is None else factor * self.limit
        return [file for file, seconds in self.seconds().items() if seconds > limit]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if WORKER:
            return
        if self.path is not None:
            rows = {
                file: {"seconds": round(seconds, 2), "clock": round(self.clock[file], 2), "tests": self.tests[file]}
                for file, seconds in self.seconds().items()
            }
            path = Path(self.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = {"slowness": round(self.slowness, 2), "limit": self.limit, "files": rows}
            path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        if self.above(NOISE) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        seconds, suites = self.seconds(), defaultdict[str, list[str]](list)
        for file in seconds:
            folders = Path(file).parts[1:-1]
            suites[folders[0] if folders else "top level"].append(file)
        write("")
        for suite, files in sorted(suites.items(), key=lambda each: -sum(seconds[file] for file in each[1])):
            tests, used = sum(self.tests[file] for file in files), sum(seconds[file] for file in files)
            clock = sum(self.clock[file] for file in files)
            write(f"{suite:<12} {tests:>5} tests {used:>8.1f} s of a processor, {clock:.1f} s of the clock")
        for file in list(seconds)[:NAMED]:
            if seconds[file] >= 5:
                write(f"{seconds[file]:>28.1f} s ({self.clock[file]:.1f} s of the clock) in {file}")
        if self.slowness > 1.05:
            write(f"This machine was {self.slowness:.2f} times slower than usual; the seconds are divided by that.")
        for file in self.above():
            word = "TOO LONG" if file in self.above(NOISE) else "LONG"
            limit = f"more than {self.limit:g} s; mark its long tests `wide`"
            write(f"{word}: {file} took {seconds[file]:.1f} s, {limit}.", red=word != "LONG")
