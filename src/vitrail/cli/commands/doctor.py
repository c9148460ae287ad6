"""`vitrail doctor`: what this machine will compute with, and why."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from ..arguments import Command, format_table, print_json


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Tell which device, number format, threads and attention a training would use here, each with its reason.

    What is slow or missing comes with the command that mends it.
    """

    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    json: bool = False
    """Print the facts as JSON."""

    def run(self) -> int:
        """Examine the machine and print what a training would use."""
        from ...services.environment import examine_machine

        facts = examine_machine(self.device)
        if self.json:
            print_json([fact._asdict() for fact in facts])
            return 0
        packages = [fact for fact in facts if not fact.reason]  # installed packages, as they should be
        print(format_table([(fact.name, fact.value, fact.reason) for fact in facts if fact.reason]))
        print(textwrap.fill(", ".join(f"{fact.name} {fact.value}" for fact in packages), 110))
        mends = [fact for fact in facts if fact.mend]
        print("\nNothing needs mending." if not mends else "\nTo mend:")
        for fact in mends:
            print(f"  {fact.name}: {fact.mend}")
        return 0
