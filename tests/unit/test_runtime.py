from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from vitrail import runtime
from vitrail.errors import UsageError
from vitrail.runtime import RuntimeSettings, choose


def test_everything_that_is_decided_has_its_reason():
    machine = choose(RuntimeSettings())
    assert machine.reasons.keys() == {"device", "precision", "threads", "num_workers", "compile"}
    assert all(machine.reasons.values())


def test_what_is_asked_for_is_taken():
    machine = choose(RuntimeSettings(device="cpu", precision="bfloat16", threads=1, compile=True))
    assert (machine.device, machine.precision, machine.threads, machine.compile) == ("cpu", "bfloat16", 1, True)
    assert machine.reasons["device"] == machine.reasons["precision"] == machine.reasons["compile"] == "asked for"


def test_a_word_that_is_no_device_lists_the_devices():
    with pytest.raises(UsageError, match=r"device must be auto, cpu, cuda, cuda:N or mps\. Got 'gpu'\."):
        choose(RuntimeSettings(device="gpu"))


def test_a_device_that_is_not_here_names_one_that_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"The device 'cuda:1' is not usable with this torch .* Use cpu"):
        choose(RuntimeSettings(device="cuda:1"))


def test_a_gpu_of_a_number_that_is_not_here_names_those_that_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"The device 'cuda:9' is not there: the GPUs of this machine are cuda:0 to c"):
        choose(RuntimeSettings(device="cuda:9"))


@pytest.mark.parametrize("there", [True, False])
def test_bfloat16_that_a_gpu_only_imitates_is_not_taken(there, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or there)
    assert runtime.supports_bfloat16("cuda:0") is there
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose(RuntimeSettings(device="cuda:0")).precision == ("bfloat16" if there else "float16")


def test_a_number_of_threads_below_zero_is_refused():
    with pytest.raises(UsageError, match=r"threads must be 0 \(all cores\) or more\. Got -2\."):
        choose(RuntimeSettings(threads=-2))


def test_the_number_format_follows_the_instructions_of_the_processor(monkeypatch):
    monkeypatch.setattr(runtime, "cpu_flags", lambda: frozenset({"avx2", "amx_bf16"}))
    assert choose(RuntimeSettings(device="cpu")).precision == "bfloat16"
    monkeypatch.setattr(runtime, "cpu_flags", lambda: frozenset({"avx2"}))
    machine = choose(RuntimeSettings(device="cpu"))
    assert machine.precision == "float32" and "no bfloat16 instructions" in machine.reasons["precision"]


def test_threads_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4}, raising=False)
    monkeypatch.setattr(runtime, "_read_cgroup_cores", lambda: None)
    assert choose(RuntimeSettings()).threads == 5
    monkeypatch.setattr(runtime, "_read_cgroup_cores", lambda: 2)
    machine = choose(RuntimeSettings())
    assert machine.threads == 2 and machine.reasons["threads"] == "the container may use 2 of 5 cores"


@pytest.mark.parametrize(("named", "threads"), [("2", 2), ("9", 4), ("0", 4), ("2,1", 4), ("", 4)])
def test_what_the_owner_of_a_machine_says_about_threads_is_heard_unless_asked_otherwise(monkeypatch, named, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(runtime, "_read_cgroup_cores", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    machine = choose(RuntimeSettings())
    assert machine.threads == threads
    assert machine.reasons["threads"].startswith("OMP_NUM_THREADS says so") == (threads == 2)
    assert choose(RuntimeSettings(threads=3)).threads == 3
    assert choose(RuntimeSettings(), num_processes=4).threads == 1


@pytest.mark.parametrize(
    ("cores", "on_node", "quota", "threads"),
    [(4, "32", None, 4), (4, "32", 16, 2), (32, "32", None, 4), (32, "", None, 4), (8, "8", None, 1)],
)
def test_a_task_that_slurm_has_bound_to_its_own_cores_uses_them_all(monkeypatch, cores, on_node, quota, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.setattr(runtime, "_read_cgroup_cores", lambda: quota)
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", on_node)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    machine = choose(RuntimeSettings(), num_processes=8)
    assert machine.threads == threads
    bound = cores == 4
    told = (
        "SLURM gives each of 8 processes 4 cores of its own" if bound else f"8 processes of this training share {cores}"
    )
    assert machine.reasons["threads"].startswith(told)
    monkeypatch.setenv("LOCAL_RANK", "0")  # torchrun inside a job: its processes share what its one task has
    assert choose(RuntimeSettings(), num_processes=8).threads == max(1, min(cores, quota or cores) // 8)


@pytest.mark.parametrize(("quota", "cores"), [(None, 3), (2, 2), (9, 3)])
def test_usable_cores_are_those_of_the_affinity_and_of_the_container(monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setattr(runtime, "_read_cgroup_cores", lambda: quota)
    assert runtime.count_usable_cores() == cores


def test_a_crowded_machine_is_told_with_the_way_out(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (12.4, 3.0, 1.0))
    two, one = (choose(RuntimeSettings(device="cpu", threads=threads)) for threads in (2, 1))
    busy = "Other programs keep this machine busy (load 12 on 2 cores)"
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    assert runtime.busy_cpu_warning(two) == f"{busy}: fewer steps fit into the minutes than without them."
    monkeypatch.setenv("GOMP_SPINCOUNT", "300000")
    told = runtime.busy_cpu_warning(two)
    assert told.startswith(f"{busy}, and 2 threads wait for each other") and "GOMP_SPINCOUNT=5000" in told
    assert runtime.busy_cpu_warning(one) == ""
    monkeypatch.setattr(os, "getloadavg", lambda: (3.9, 3.0, 1.0))
    assert runtime.busy_cpu_warning(two) == ""


def test_applying_sets_the_threads_of_torch():
    before = torch.get_num_threads()
    try:
        runtime.apply(choose(RuntimeSettings(threads=1)))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_choosing_changes_nothing():
    before = torch.get_num_threads()
    choose(RuntimeSettings(threads=before + 1))
    assert torch.get_num_threads() == before


def test_a_machine_without_a_list_of_flags_has_none(monkeypatch):
    def absent(*words: object, **more: object) -> str:
        raise OSError

    monkeypatch.setattr(runtime.Path, "read_text", absent)
    assert runtime.cpu_flags() == frozenset()
    assert runtime.cpu_name()


def test_decoding_takes_as_many_threads_as_the_products_unless_said():
    assert runtime.choose(RuntimeSettings(threads=3)).num_workers == 3
    assert runtime.choose(RuntimeSettings(num_workers=0)).num_workers == 0
    with pytest.raises(UsageError, match=r"workers must be -1 \(all cores\), 0 \(none\) or more\. Got -2"):
        runtime.choose(RuntimeSettings(num_workers=-2))


FAULTS = """
import resource, statistics
import torch
from vitrail import runtime
kept = runtime.keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
counts = []
for _ in range(40):  # small things settle in between at first
    before = faults()
    torch.ones(2**24)  # 64 MiB
    counts.append(faults() - before)
print(kept, statistics.median_low(counts[20:]))
"""


@pytest.mark.wide
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told")
@pytest.mark.parametrize("owned", [False, True])
def test_freed_memory_is_kept_unless_the_owner_of_the_machine_has_said_otherwise(owned):
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "LD_PRELOAD"))}
    asked = mine | ({"MALLOC_TRIM_THRESHOLD_": "131072"} if owned else {})
    done = subprocess.run([sys.executable, "-c", FAULTS], env=asked, check=True, capture_output=True, text=True)
    kept, faults = done.stdout.split()
    assert (kept == "True") is not owned
    assert (int(faults) > 10_000) if owned else (int(faults) < 1_000), faults
