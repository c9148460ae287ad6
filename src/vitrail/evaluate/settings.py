"""What a person may say about answers: the [answers] table of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from ..data.source import Task
from ..errors import UsageError
from . import conformal
from .thresholds import Rule


@dataclass(frozen=True, kw_only=True)
class AnswerSettings:
    """How answers are made of outputs, and how they are judged; everything is fitted on validation pictures."""

    calibrate: bool = True
    """Divide logits by the temperature under which the validation pictures are likeliest."""
    rule: str = "f1"
    """From which probability on a label is answered: half, f1, youden, sensitivity SHARE, specificity SHARE, cost
    NUMBER (a miss costs as much as so many false alarms)."""
    positive: str = ""
    """Of two classes the one that `rule` chooses a threshold for, such as "defect"; empty answers the likelier one."""
    reject: float = 0.0
    """Share of the validation pictures, the least sure, that are not answered; for classes."""
    miss: float = 0.05
    """Share of pictures whose class may be missing from their set, or number from its range."""
    ordered: bool = False
    """The classes stand in an order, such as grades, so that a near miss is better than a far one."""

    def __post_init__(self) -> None:
        Rule.read(self.rule)
        conformal.fewest(self.miss)
        if not 0 <= self.reject < 1:
            raise UsageError(f"answers.reject must lie in 0..1. Got {self.reject}.")

    def check(self, task: Task, classes: tuple[str, ...]) -> None:
        """Refuse what this task cannot follow; nothing is ignored.

        Raises:
            UsageError: the setting, and what it is for.
        """
        usual = AnswerSettings()
        if self.positive and (task != "classes" or len(classes) != 2 or self.positive not in classes):
            known = ", ".join(classes[:10])
            raise UsageError(f"answers.positive names one of two classes. Got {self.positive!r} for {task}: {known}.")
        if self.rule != usual.rule and not (task == "labels" or self.positive):
            raise UsageError(
                f"answers.rule {self.rule!r} chooses thresholds of labels, or of one of two classes that "
                f"answers.positive names. The task is {task}; leave it out."
            )
        if self.positive and self.reject:
            raise UsageError(
                "answers.reject leaves unanswered what is near one half, and answers.positive answers from a threshold "
                "of its own. Give one of them."
            )
        for name, value in (("reject", self.reject), ("ordered", self.ordered)):
            if value and task != "classes":
                raise UsageError(f"answers.{name} is for the task classes. The task is {task}; leave it out.")
