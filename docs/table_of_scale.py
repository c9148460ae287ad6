"""Write what `vitrail inspect --cost` says of three large plans into docs/scale.md between its markers."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from markers import fill

from vitrail.cli.main import main as vitrail

PAGE = Path(__file__).parent / "scale.md"
H100 = ("--cost", "--on", "h100")
CASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "ViT-S on ImageNet": (
        ("vit_small_patch16_224", *H100, "--batch", "1024", "--pictures", "1281167", "--epochs", "90"),
        (
            *("vit_small_patch16_224", *H100, "--batch", "1024", "--pictures", "1281167", "--epochs", "90"),
            *("--reached", "0.23"),
        ),
    ),
    "ViT-g on 64": (
        (
            *("vit_giant_patch14_224", *H100, "--devices", "64", "--batch", "4096"),
            *("--pictures", "14197122", "--epochs", "30"),
        ),
    ),
    "answers": (("vit_base_patch16_224", *H100, "--devices", "8", "--pictures", "1000000000"),),
}


def main() -> None:
    """Replace what stands between the markers of each plan."""
    for name in CASES:
        fill(PAGE, name, describe_plans(name))


def describe_plans(name: str) -> str:
    """The commands of a plan and what each prints of the cost."""
    return "\n".join(["```", *(answer(words) for words in CASES[name]), "```"])


def answer(words: tuple[str, ...]) -> str:
    """A command and the part of its answer that is about the cost."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = vitrail(["inspect", *words])
    if code:
        raise SystemExit(f"vitrail inspect {' '.join(words)} ended with {code}.")
    cost = said.getvalue().partition("\nCost of ")[2]
    return f"$ vitrail inspect {' '.join(words)}\nCost of {cost.strip()}"


if __name__ == "__main__":
    main()
