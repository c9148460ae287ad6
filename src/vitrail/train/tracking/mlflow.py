"""MLflow: one run of an experiment, resumed under its id; MLFLOW_TRACKING_URI says where."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from .tracker import Filed, Tracker

LONGEST = 6000
"""Signs of a parameter that MLflow takes."""
AT_ONCE = 100
"""Parameters that it takes in one request."""


class MLflow(Tracker):
    """Its client is asked directly, so that no run of the user's own program is touched."""

    def __init__(self, filed: Filed):
        from mlflow import MlflowClient
        from mlflow.entities import Param, RunStatus

        self._client = MlflowClient()
        self._ended = {True: RunStatus.to_string(RunStatus.FINISHED), False: RunStatus.to_string(RunStatus.KILLED)}
        if filed.known_as:
            self.known_as = filed.known_as
            self._client.update_run(self.known_as, RunStatus.to_string(RunStatus.RUNNING))
            return
        title = filed.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "vitrail"
        found = self._client.get_experiment_by_name(title)
        experiment = self._client.create_experiment(title) if found is None else found.experiment_id
        self.known_as = str(self._client.create_run(experiment, run_name=filed.name).info.run_id)
        fields = [Param(name, str(value)[:LONGEST]) for name, value in filed.settings.items()]
        for first in range(0, len(fields), AT_ONCE):
            self._client.log_batch(self.known_as, params=fields[first : first + AT_ONCE])

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Log one row in one request."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self.known_as, [Metric(name, number, now, step) for name, number in numbers.items()])

    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures at the last step."""
        self.record("step", step, figures)

    def close(self, whole: bool) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self.known_as, self._ended[whole])
