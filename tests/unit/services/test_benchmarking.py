"""The words around a measurement: what is refused, what the tables say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from vitrail.bench.attention_table import AttentionTiming, TableProposal
from vitrail.bench.measure import Timing, select_benchmarks
from vitrail.errors import UsageError
from vitrail.export import build
from vitrail.services import benchmarking
from vitrail.services.benchmarking import BenchRequest, ModelBenchmark

TINY = "vit_mu_patch8_16"


@pytest.fixture(autouse=True)
def threads_kept():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bench():
    before = torch.get_num_threads()
    only = ("inference", "training")
    asked = BenchRequest(batch_sizes=(2, 1), only=only, precision="float32", rounds=2, threads=1, min_seconds=0.0)
    found = ModelBenchmark(TINY, asked)
    for _ in found.run():
        pass
    torch.set_num_threads(before)
    return found


def test_a_result_carries_what_a_claim_of_speed_must_say(bench):
    facts = json.loads(json.dumps(bench.facts, allow_nan=False))
    assert facts["machine"]["threads"] == 1 and facts["machine"]["versions"]["torch"] == torch.__version__
    assert facts["machine"]["device"] == "cpu" and "commit" in facts["machine"]
    assert (facts["number_format"], facts["compiled"], facts["optimizer"]) == ("float32", False, "muon")
    assert [(row["what"], row["batch"]) for row in facts["rows"]] == [
        ("inference", 1), ("inference", 2), ("training", 1), ("training", 2),
    ]  # fmt: skip
    for row in facts["rows"]:
        assert row["seconds"]["rounds"] == 2 and row["seconds"]["fastest"] <= row["seconds"]["median"]
        assert row["utilisation"] == pytest.approx(
            row["flops"] / row["seconds"]["median"] / row["limit_flops_per_second"]
        )
    assert facts["limits"].keys() == {"large_product_flops", "copied_bytes_per_second"}
    assert set(facts["excluded"]) == {"inference", "training"} and facts["architecture"]["width"] == 32


def test_the_table_has_a_line_for_each_row_and_columns_that_align(bench):
    lines = bench.format_table().splitlines()
    assert lines[0].startswith(f"{TINY} in float32 on ") and "1 thread" in lines[0]
    head = next(line for line in lines if "pictures/s" in line)
    rows = [line for line in lines if line.startswith(("inference", "training"))]
    assert len(rows) == 4 and len({len(line) for line in (head, *rows)}) == 1


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"rounds": 0}, "--rounds must be at least 1. Got 0"),
        ({"batch_sizes": (4, 0)}, "--batches must be 1 or more. Got 0"),
        ({"only": ("speed",)}, "Got 'speed'"),
    ],
)
def test_what_cannot_be_measured_is_refused(asked, words):
    with pytest.raises(UsageError, match=words):
        ModelBenchmark(TINY, BenchRequest(**asked))


def test_changes_of_the_attention_table_are_lines_of_python():
    timing = Timing(0.002, 0.002, 0.002, 1, 1)
    rows = [AttentionTiming("float32", True, 16, timing, Timing(0.001, 0.001, 0.001, 1, 1))]
    told = benchmarking.format_attention_results(rows, [TableProposal(("AVX2", "float32", True), 0, 16)])
    assert "float32        yes      16      2.00     1.00        2.00" in told
    assert told.splitlines()[-1] == "    ('AVX2', 'float32', True): 16,  # now 0"
    assert benchmarking.format_attention_results(rows, []).endswith("says the same.")


def test_attention_is_measured_in_the_formats_that_are_asked_for():
    found, _ = benchmarking.benchmark_attention(
        BenchRequest(precision="float32", rounds=1, min_seconds=0.0, threads=1), token_counts=(4,)
    )
    assert [(row.precision, row.tokens) for row in found] == [("float32", 4)] * 2


def test_engines_are_measured_only_where_they_are_named():
    assert select_benchmarks(()) == ("inference", "training", "loading", "predicting")
    assert select_benchmarks(("openvino", "inference")) == ("inference", "openvino")


@pytest.mark.wide
@pytest.mark.needs_openvino
def test_files_of_both_engines_stand_beside_torch():
    asked = BenchRequest(
        batch_sizes=(2,), only=("inference", "onnx", "openvino"), precision="float32", rounds=1, threads=1,
        min_seconds=0.0,
    )  # fmt: skip
    found = ModelBenchmark(TINY, asked)
    assert [message for message in found.run() if message.startswith("warming up o")]
    rows = {row["what"]: row for row in found.facts["rows"]}
    assert list(rows) == ["inference", "onnx", "openvino"] and not found.facts["left_out"]
    assert rows["openvino"]["flops"] == rows["onnx"]["flops"] == rows["inference"]["flops"] > 0
    assert rows["openvino"]["limit_flops_per_second"] is None and "OpenVINO" in found.facts["excluded"]["openvino"]


def test_an_engine_that_is_not_installed_is_left_out_by_name(monkeypatch):
    monkeypatch.setattr(build, "ONNX_PACKAGES", ("no_such_package",))
    asked = BenchRequest(batch_sizes=(1,), only=("inference", "onnx"), precision="float32", rounds=1, threads=1)
    found = ModelBenchmark(TINY, replace(asked, min_seconds=0.0))
    list(found.run())
    assert [row["what"] for row in found.facts["rows"]] == ["inference"]
    (said,) = found.facts["left_out"]
    assert said.startswith("onnx: An ONNX file needs no_such_package. Missing: no_such_package. Get them with: ")
