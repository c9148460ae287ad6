"""The manifests of `examples/` for Kubernetes hold what its API knows, field by field, by the models of its client."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pydantic
import pytest
import yaml

pytestmark = [pytest.mark.needs_kubernetes, pytest.mark.wide]
EXAMPLES = Path(__file__).parents[2] / "examples"
PREFIXES = {"v1": "V1", "apps/v1": "V1", "batch/v1": "V1", "autoscaling/v2": "V2"}
"""Of the client's models, by the version of the API."""


@pytest.fixture
def read(monkeypatch):
    """A function that reads one document strictly."""
    folder = Path(importlib.util.find_spec("kubernetes").submodule_search_locations[0])
    for name in ("kubernetes", "kubernetes.client", "kubernetes.client.models"):
        package = ModuleType(name)  # the real ones import their whole API, and what it asks for
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        monkeypatch.setitem(sys.modules, name, package)

    def read_strictly(document):
        model = PREFIXES[document["apiVersion"]] + document["kind"]
        words = re.sub(r"(?<=.)([A-Z])", r"_\1", model).lower()
        module = importlib.import_module(f"kubernetes.client.models.{words}")
        getattr(module, model).model_validate(document)

    yield read_strictly
    for name in [name for name in sys.modules if name.startswith("kubernetes.")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("name", ["serving.yaml", "training-job.yaml"])
def test_every_field_is_one_of_the_api_and_of_its_type(name, read):
    documents = list(yaml.safe_load_all((EXAMPLES / name).read_text()))
    for document in documents:
        read(document)
    assert len(documents) == {"serving.yaml": 3, "training-job.yaml": 2}[name]


def test_a_misspelt_field_and_a_wrong_type_are_found(read):
    _, deployment, _ = yaml.safe_load_all((EXAMPLES / "serving.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["livenesProbe"] = container.pop("livenessProbe")
    with pytest.raises(pydantic.ValidationError, match="livenesProbe"):
        read(deployment)
    container["livenessProbe"] = container.pop("livenesProbe")
    read(deployment)
    deployment["spec"]["replicas"] = "two"
    with pytest.raises(pydantic.ValidationError, match="replicas"):
        read(deployment)
