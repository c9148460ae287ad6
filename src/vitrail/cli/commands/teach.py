"""`vitrail teach`: good pictures into the bank of an anomaly run, or out of it, in seconds and without training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...formatting import format_count
from ...services import progress
from ..arguments import Command, print_json

if TYPE_CHECKING:
    from ...services.bank_versions import TeachResult


@dataclass(frozen=True, kw_only=True)
class Teach(Command):
    """Add good pictures to the bank of an anomaly run, or remove some, without training; the promise is made anew.

    Every teaching is a version beside those before, and is in use from then on: predict, evaluate, explain, the server
    and new exports follow it. A version depends on which pictures it holds and on nothing else, so that adding some
    and removing them again gives the same bytes.

      vitrail teach RUN more-good/
      vitrail teach RUN --forget oddest.csv
      vitrail teach RUN more-good/ --group lot-17 --by "A. Meier"
      vitrail teach RUN --alpha 0.05
      vitrail teach RUN --use training
    """

    POSITIONAL = ("run_folder", "paths")

    run_folder: Path
    """The run folder."""
    paths: tuple[str, ...] = ()
    """Good pictures: files, folders, patterns, @list.txt or - for standard input."""
    forget: Path | None = None
    """A CSV whose column id names pictures to remove, such as lines of calibration.csv."""
    group: str = ""
    """Of a run with groups, the one that all these pictures belong to, such as their lot."""
    alpha: float | None = None
    """The share of good pictures that may be called defects from now on; by default as before."""
    keep: str = ""
    """The name of the new version; by default bank-1, bank-2, ..."""
    by: str = ""
    """Who teaches, for the record."""
    use: str = ""
    """An earlier version to put to use again; training is the training's own."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        """Teach, and print what changed."""
        from ...predict.image_paths import expand_image_paths
        from ...services import bank_versions

        images = expand_image_paths(self.paths)
        for folder in (Path(path) for path in self.paths if Path(path).is_dir()):
            bank_versions.require_good_folders(folder, [image for image in images if folder in image.parents])
        forget = () if self.forget is None else bank_versions.read_forget_list(self.forget)
        result = bank_versions.teach(
            self.run_folder, images, forget, self.group, self.alpha, self.keep, self.by, self.use, self.device
        )
        if self.json:
            print_json({"run": str(self.run_folder), **result.to_json()})
            return 0
        progress.print_notes(result.notes)
        print("\n".join(describe_teaching(result, self.run_folder)))
        return 0


def describe_teaching(result: TeachResult, run: Path) -> list[str]:
    """The lines of a result, for the terminal."""
    changes = [f"{count:,} {word}" for count, word in ((result.added, "added"), (result.forgotten, "removed")) if count]
    pictures = format_count(result.pictures, "good picture") + (f" ({', '.join(changes)})" if changes else "")
    before = result.alpha_before, result.alarm_score_before
    lines = [
        f"Bank     {result.version}, in use: {pictures}, {format_count(result.patches, 'patch', 'patches')}",
        f"Promise  {result.alpha:.2%} false alarms (before: {before[0]:.2%}); at best {result.least_alpha:.2%}",
        f"Defect   above a score of {result.alarm_score:.4f} (before: {before[1]:.4f})",
    ]
    if result.path is not None:
        lines.append(f"Kept     {result.path}")
    if result.before != result.version:
        lines.append(f"Back     vitrail teach {run} --use {result.before}")
    return lines
