"""`vitrail watch`: compare the pictures that a run meets in use with those it has held out, day by day."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError
from ...services import progress
from ..arguments import Command, print_json


@dataclass(frozen=True, kw_only=True)
class Watch(Command):
    """Watch the pictures that a run meets in use: a line a day, how unlike the training they are, how the scores move,
    and an alarm when they have changed.

    PATHS are folders, patterns and lists of pictures, whose day is that of the file; manifests with a column of days;
    and logs of `vitrail serve --score-log`. The promise is a rate of false alarms, whatever the number of pictures a
    day. Scores are kept in RUN/watch, so that no picture is answered twice; the page of the days is there too.

      vitrail watch RUN incoming/ --since 2026-11-01
      vitrail watch RUN stream.csv --since 2026-11-01 --date taken --group patient
      vitrail watch RUN incoming/ --since 2026-11-01 --labels reviewed.csv
      vitrail watch RUN incoming/ --since 2026-11-01 --normal-until 2026-11-14
      vitrail watch RUN scores.jsonl --since 2026-11-01
    """

    POSITIONAL = ("run_folder", "paths")

    run_folder: Path
    """The run folder."""
    paths: tuple[str, ...] = ()
    """Folders, patterns, @list.txt, manifests or score logs."""
    since: str = ""
    """The first day, such as 2026-11-01: the test begins anew with it, for example after a repair."""
    date: str = ""
    """Column of a manifest with the days; found if it is called date, day, time or so."""
    group: str = ""
    """Column of a manifest whose equal values, such as one patient, belong together; by default that of the run."""
    alarms: float = 0.1
    """The promise: at most so many false alarms in 30 days on average."""
    labels: str = ""
    """A source with the labels of some of these pictures, known later: their figure with its interval, by month."""
    normal_until: str = ""
    """The days up to this one are normal: later ones are compared with them and not with the held-out pictures."""
    out: Path | None = None
    """Write the page to this file instead of RUN/watch/watch.html."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, instead of stopping."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    json: bool = False
    """Print the days as JSON."""

    def run(self) -> int:
        """Watch, print the days and write the page."""
        if not self.since:
            raise UsageError("--since is missing: the first day to watch, such as 2026-11-01.")
        from ...services.watching import WatchRequest, watch

        request = WatchRequest(
            since=self.since, date_column=self.date, group_column=self.group, false_alarms=self.alarms,
            labels=self.labels or None, normal_until=self.normal_until, skip_bad=self.skip_bad, out=self.out,
        )  # fmt: skip
        report = watch(self.run_folder, self.paths, request, self.device, track=progress.track_batches)
        if self.json:
            print_json({"run": str(self.run_folder), **report.to_json()})
            return 0
        progress.print_notes(report.notes)
        print(report.table())
        print(report.page)
        return 0
