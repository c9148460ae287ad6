"""The files of `examples/` for other machines name what exists, and the app of Ray Serve answers as the model does."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from fastapi import FastAPI
from fastapi.routing import APIRoute

import partners
from vitrail.cli.arguments import parse_command
from vitrail.cli.main import COMMANDS
from vitrail.serve.app import _add_health_routes
from vitrail.serve.auth import TOKEN_VARIABLE, read_tokens
from vitrail.serve.limits import ServerLimits
from vitrail.serve.server import CLOSE_TIMEOUT
from vitrail.serve.service import Service
from vitrail.train.distributed.collectives import group_from_env

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVICE_CODE = (EXAMPLES.parent / "src" / "vitrail" / "serve" / "service.py").read_text()
RANK = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def test_the_job_for_kubernetes_says_who_each_process_is_and_what_to_train():
    service, job = yaml.safe_load_all((EXAMPLES / "training-job.yaml").read_text())
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    (rank,) = (one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"] if "valueFrom" in one)
    assert variables["RANK"] is None and rank == RANK
    group = group_from_env({**variables, "RANK": "3"})
    assert (group.rank, group.world_size, group.local_rank, group.local_world_size) == (
        3,
        job["spec"]["completions"],
        0,
        1,
    )
    name = job["metadata"]["name"]
    assert group.address == f"{name}-0.{spec['subdomain']}:29500"  # an indexed pod is called after its job and rank
    assert service["metadata"]["name"] == spec["subdomain"] and service["spec"]["selector"] == {"job-name": name}
    assert job["spec"]["parallelism"] == group.world_size
    verb, *words = container["args"]
    assert parse_command(COMMANDS[verb], words).epochs == 100
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_the_deployment_for_kubernetes_asks_what_the_server_answers_and_gives_it_time_to_finish():
    service, deployment, scaler = yaml.safe_load_all((EXAMPLES / "serving.yaml").read_text())
    template = deployment["spec"]["template"]
    assert (
        service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    )
    (container,) = template["spec"]["containers"]
    verb, *words = container["args"]
    asked = parse_command(COMMANDS[verb], words)
    (port,) = container["ports"]
    assert (asked.host, asked.port) == ("0.0.0.0", port["containerPort"])  # reached by other pods
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    paths = [probe["path"] for probe in probes.values()]
    assert paths == ["/v2/health/ready", "/v2/health/ready", "/v2/health/live"]
    assert set(paths) <= asyncio.run(health_routes())
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert template["spec"]["terminationGracePeriodSeconds"] >= before + ServerLimits.drain_timeout + CLOSE_TIMEOUT
    assert container["env"][0]["name"] == TOKEN_VARIABLE
    assert float(container["resources"]["limits"]["cpu"]) > asked.threads > 0
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}
    scraped = template["metadata"]["annotations"]
    assert (scraped["prometheus.io/port"], scraped["prometheus.io/path"]) == (str(port["containerPort"]), "/metrics")
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (metric,) = scaler["spec"]["metrics"]
    assert (
        metric["pods"]["metric"]["name"] in SERVICE_CODE
        and scaler["spec"]["minReplicas"] == deployment["spec"]["replicas"]
    )


def test_the_service_of_docker_compose_is_the_image_s_with_a_token_and_a_probe():
    (service,) = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"].values()
    assert (EXAMPLES / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    verb, *words = service["command"]
    asked = parse_command(COMMANDS[verb], words)
    assert service["ports"] == [f"127.0.0.1:{asked.port}:{asked.port}"] and asked.host == "0.0.0.0"
    assert list(service["environment"]) == [TOKEN_VARIABLE]
    (probed,) = re.findall(rf"http://127\.0\.0\.1:{asked.port}(/[\w/]+)", service["healthcheck"]["test"][-1])
    assert probed in asyncio.run(health_routes())
    compile(service["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert int(service["stop_grace_period"].removesuffix("s")) >= ServerLimits.drain_timeout + CLOSE_TIMEOUT
    assert float(service["deploy"]["resources"]["limits"]["cpus"]) > asked.threads > 0


def test_the_forge_runs_what_is_here_on_every_push_and_all_of_it_every_week():
    forge, root = EXAMPLES.parent / ".github" / "workflows", EXAMPLES.parent
    goals = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    said: dict[str, list[str]] = {}
    for path in sorted(forge.glob("*.yml")):
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        said[path.name] = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert ".ci/run" in said["tests.yml"] and (root / ".ci" / "run").stat().st_mode & 0o111
    assert "make test-all" in said["weekly.yml"]
    assert {line.split()[1] for lines in said.values() for line in lines if line.startswith("make ")} <= goals
    packages = re.search(r"^packages=\((.*)\)", (root / ".ci" / "run").read_text(), re.MULTILINE)
    assert packages and set(packages[1].split()) <= set(said["weekly.yml"][0].split())


async def health_routes() -> set[str]:
    """Of a server whose model was not read."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def never(*_: object) -> NoReturn:
        raise AssertionError("nothing is opened here")

    _add_health_routes(app, Service("cells", ServerLimits(), read_tokens(None, {}), never, never, never))
    return {route.path for route in app.routes if isinstance(route, APIRoute)}


SRUN = """#!/bin/sh
echo "$@" >> said.txt
exit "$(cat code)"
"""
SCONTROL = """#!/bin/sh
echo "scontrol $@" >> said.txt
"""


def test_the_job_for_slurm_begins_goes_back_into_the_queue_and_goes_on(tmp_path):
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17"}

    def job(code: int) -> tuple[int, list[str]]:
        (tmp_path / "code").write_text(str(code))
        (tmp_path / "said.txt").write_text("")
        done = subprocess.run(["bash", EXAMPLES / "training-job.sh"], cwd=tmp_path, env=environment, check=False)
        return done.returncode, (tmp_path / "said.txt").read_text().splitlines()

    code, (begun, queued) = job(143)
    verb, *words = begun.split()[1:]
    assert code == 143 and parse_command(COMMANDS[verb], words).epochs == 100 and queued == "scontrol requeue 17"
    (tmp_path / "runs" / "films").mkdir(parents=True)
    (tmp_path / "runs" / "films" / "plan.toml").touch()
    assert job(143) == (143, ["vitrail train --resume runs/films", "scontrol requeue 17"])
    assert job(0) == (0, ["vitrail train --resume runs/films"])
    assert job(6) == (6, ["vitrail train --resume runs/films"])
    said = (EXAMPLES / "training-job.sh").read_text()
    assert "--signal=TERM@" in said and "--signal=B:" not in said  # every process, not the script


def answer(address: str, picture: bytes, until: float) -> tuple[int, dict]:
    """The answer to a picture; Ray's proxy begins anew when its routes change, and is away for a moment then."""
    asked = urllib.request.Request(address, data=picture, method="POST")
    while True:
        try:
            with urllib.request.urlopen(asked, timeout=60) as found:
                return found.status, json.loads(found.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > until:
                raise
            time.sleep(0.2)


@pytest.mark.needs_ray_serve
@pytest.mark.slow
def test_the_app_of_ray_serve_answers_as_the_model_does(vitrail, run_folder, flowers, tmp_path):
    port = partners.free_port()
    words = [sys.executable, EXAMPLES / "serve_with_ray.py", run_folder, "--port", port]
    paths = ":".join(path for path in sys.path if path)
    environment = {**partners.clean(), "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "PYTHONPATH": paths}
    with (tmp_path / "said.txt").open("w+b") as said:
        server = subprocess.Popen(list(map(str, words)), env=environment, stdout=said, stderr=said)
        try:
            until = time.monotonic() + 240
            while b"ready on" not in (tmp_path / "said.txt").read_bytes():
                assert server.poll() is None and time.monotonic() < until, (tmp_path / "said.txt").read_text()[-3000:]
                time.sleep(0.2)
            picture = flowers / "disc" / "0.png"
            status, row = answer(f"http://127.0.0.1:{port}/", picture.read_bytes(), until)
            broken, why = answer(f"http://127.0.0.1:{port}/", b"no picture", until)
        finally:
            server.terminate()
            server.wait(60)
    (expected,) = json.loads(vitrail("predict", run_folder, picture, "--json").out)
    assert status == 200 and row["label"] == expected["label"]
    assert row["probability"] == pytest.approx(expected["probability"], abs=1e-5)
    assert broken == 400 and why["error"]


@pytest.mark.needs_accelerate
@pytest.mark.wide
def test_a_loop_of_accelerate_ends_in_a_bundle(vitrail, flowers, tmp_path):
    words = [sys.executable, str(EXAMPLES / "train_with_accelerate.py"), str(flowers), str(tmp_path / "own")]
    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path), "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(words, env=partners.clean() | paths, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "epoch 10 of 10: mean loss " in done.stdout
    answer = vitrail("predict", tmp_path / "own", flowers / "disc" / "0.png", "--json")
    assert json.loads(answer.out)[0]["label"] in ("disc", "stripes")


@pytest.mark.needs_ray
@pytest.mark.slow
def test_a_ray_cluster_of_two_workers_trains_one_model(vitrail, flowers, tmp_path):
    run = tmp_path / "run"
    words = [str(EXAMPLES / "train_with_ray.py"), str(flowers), "--model", "vit_mu_patch8_16", "--steps", "4"]
    cluster = tmp_path / "on_two_cores.py"  # the machine of the tests may have fewer than two free
    cluster.write_text(ON_TWO)
    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path), "RAY_USAGE_STATS_ENABLED": "0"}
    words = [sys.executable, str(cluster), *words, "--out", str(run)]
    done = subprocess.run(words, env=partners.clean() | paths, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "trained: " in done.stdout and (run / "report.html").is_file()
    assert "2 processes of this training share" in (run / "plan.toml").read_text()
    assert vitrail("predict", run, flowers / "disc" / "0.png").code == 0


ON_TWO = """
import runpy, sys
import ray
ray.init(num_cpus=2, include_dashboard=False)
plain, ray.init = ray.init, lambda **words: None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
