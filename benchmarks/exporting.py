"""Exported files beside PyTorch: pictures per second of ViT-Ti, S and B at 224, and how often a trained run agrees.

    python benchmarks/exporting.py                                   # speed, about ten minutes on two cores
    python benchmarks/exporting.py --run runs/flowers                # and agreement of that run on what it held out
    python benchmarks/exporting.py --resume                          # go on after an interruption
    python benchmarks/exporting.py --sizes vit_mu_patch8_16 --rounds 1 --out /tmp/tiny.json       # seconds, to try it

Every size has fresh random weights, so that only its speed is told: the model in eager PyTorch, the same in float32
and bf16 as `vitrail predict` computes, the pt2 file in float32 and bf16, the ONNX file in float32 and int8, and
OpenVINO's file in both, and with bf16 instead of float32 where the processor has it (no export does that: distances
from the training images would be computed in bf16, too). All get the same batch of uint8 pictures and normalise it
themselves, in turns, with as many threads each; the figure is the median of the rounds. The C library gives memory
back as it does by itself: `vitrail predict` would keep it and be faster (`runtime.keep_memory`), but in this process
PyTorch would be, too. Beside them stands what the machine multiplies at most in float32 and bf16. Nothing else should
be running.

Writes benchmarks/results/exporting-INSTRUCTIONS.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitrail.data.preprocess import normalize, to_batch_tensor
from vitrail.evaluate.precision import measure_rates
from vitrail.export import quantize
from vitrail.export.build import FORMAT_EXTENSIONS, reopen_file, write_and_reopen, write_openvino
from vitrail.export.quantize import export_reduced_precision
from vitrail.model.attention import device_capability
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.predict.openvino_predictor import SETTINGS, make_core
from vitrail.predict.predictor import PredictorMember
from vitrail.runtime import cpu_name
from vitrail.services.exporting import draw_synthetic_images, load_calibration_images, load_comparison_images
from vitrail.services.prediction import open_predictor
from vitrail.spec import ImageSpec

RESULTS = Path(__file__).parent / "results"
SIZES = ("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224")
SMALLER = (("onnx", "int8"), ("openvino", "int8"), ("onnx", "float16"), ("pt2", "bf16"))
CALIBRATING = 16


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=SIZES)
    parser.add_argument("--run", type=Path, help="a trained run whose agreement is measured on its held-out pictures")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS / f"exporting-{device_capability('cpu').lower()}.json")
    parser.add_argument("--resume", action="store_true", help="keep what --out has already of this machine")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "onnxruntime", "openvino")}
    setting = {"processor": cpu_name(), "threads": options.threads, **versions}
    rates = read_rates(options.out, setting, options.batch, options.rounds) if options.resume else {}
    result = {
        "machine": {**setting, **limits()},
        "batch": options.batch,
        "rounds": options.rounds,
        "pictures_per_second": rates,
    }
    for size in options.sizes:
        if size not in rates:
            rates[size] = speeds(size, options.batch, options.rounds)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.run is not None:
        result["agreement"] = agreements(options.run)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {options.out}")


def read_rates(path: Path, setting: dict[str, object], batch: int, rounds: int) -> dict[str, dict[str, float]]:
    """What an earlier call has measured in the same way; empty if there is none."""
    before = json.loads(path.read_text()) if path.exists() else {"machine": {}}
    same = (before.get("batch"), before.get("rounds")) == (batch, rounds)
    same = same and all(before["machine"].get(name) == value for name, value in setting.items())
    return before["pictures_per_second"] if same else {}


def speeds(size: str, batch: int, rounds: int) -> dict[str, float]:
    """Pictures per second of every file of one size."""
    config = replace(config_from_name(size), outputs=1000)
    spec = ImageSpec(height=config.image_size[0], width=config.image_size[1], channels=config.channels)
    names = tuple(map(str, range(config.outputs)))
    member = PredictorMember(model=create_model(config, seed=0).eval(), spec=spec, classes=names)
    pictures = draw_synthetic_images(*spec.size, spec.channels, CALIBRATING)
    with tempfile.TemporaryDirectory() as name:
        found = measure_rates(answerers(member, pictures, Path(name)), pictures, rounds, batch)
    for way, rate in found.items():
        print(f"{size:24} {way:20} {rate:9.1f} pictures/s  {rate / found['PyTorch float32']:5.2f}x")
    return {way: round(rate, 2) for way, rate in found.items()}


def answerers(member: PredictorMember, pictures: np.ndarray, folder: Path) -> dict[str, Callable[[np.ndarray], object]]:
    """Everything that answers as one model does."""
    whole = write_and_reopen(member, "onnx", folder / "float32.onnx", resize=False)
    facts = replace(whole.metadata, number_format="int8")
    for name, fuse in (("int8", True), ("standard", False)):
        out = folder / f"{name}.onnx"
        quantize.quantize_onnx(folder / "float32.onnx", pictures, facts, out, member.model, fuse=fuse)
    write_openvino(folder / "standard.onnx", folder / "int8.xml")
    answers: dict[str, Callable[[np.ndarray], object]] = {
        "PyTorch float32": eager(member),
        "predict float32": predict_with_run(member),
        "predict bf16": predict_with_run(replace(member, settings=replace(member.settings, precision="bfloat16"))),
        "pt2 float32": write_and_reopen(member, "pt2", folder / "float32.pt2", resize=False).run,
        "pt2 bf16": write_and_reopen(member, "pt2", folder / "bf16.pt2", False, "bfloat16").run,
        "ONNX float32": whole.run,
        "ONNX int8": reopen_file(folder / "int8.onnx", "onnx").run,
        "OpenVINO float32": write_and_reopen(member, "openvino", folder / "float32.xml", resize=False).run,
        "OpenVINO int8": reopen_file(folder / "int8.xml", "openvino").run,
    }
    if "BF16" in make_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        for kind in ("float32", "int8"):
            answers[f"OpenVINO {kind}, bf16"] = run_in_bf16(folder / f"{kind}.xml")
    return answers


def run_in_bf16(path: Path) -> Callable[[np.ndarray], object]:
    """OpenVINO's file, where what is not int8 is computed in bf16."""
    settings = {**SETTINGS, "INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    request = make_core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda images: request.infer([images], share_inputs=True)


def eager(member: PredictorMember) -> Callable[[np.ndarray], object]:
    """The model itself and nothing around it."""

    @torch.inference_mode()
    def logits(images: np.ndarray) -> torch.Tensor:
        return member.model(normalize(to_batch_tensor(images), member.spec))

    return logits


def predict_with_run(member: PredictorMember) -> Callable[[np.ndarray], object]:
    """The model as `vitrail predict` asks it."""
    return lambda images: member.compute_outputs(to_batch_tensor(images))


def agreements(run: Path) -> dict[str, object]:
    """How often the smaller files of a run decide as float32 does, and how fast they are."""
    member = open_predictor(run, "cpu").single_member()
    pictures, whose = load_comparison_images(run, member.spec, False, None, 500)
    calibration, fitted = load_calibration_images(run, member.spec, None, None)
    found: dict[str, object] = {"pictures": whose, "int8": fitted}
    with tempfile.TemporaryDirectory() as name:
        for kind, precision in SMALLER:
            out = Path(name) / f"{precision}{FORMAT_EXTENSIONS[kind]}"
            agreed = export_reduced_precision(member, kind, precision, out, pictures, calibration, force=True)
            print(agreed)
            found[f"{kind} {precision}"] = {
                "pictures": agreed.num_images,
                "same": agreed.same_fraction,
                "largest_difference": agreed.difference,
                "pictures_per_second": {way: round(rate, 2) for way, rate in agreed.rates.items()},
            }
    return found


def limits(side: int = 1536, rounds: int = 5) -> dict[str, float]:
    """Thousand million operations a second of a square matrix product."""
    found = {}
    for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
        taken = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            a @ b
            taken.append(time.perf_counter() - began)
        found[f"{name}_gflops"] = round(2 * side**3 / sorted(taken[1:])[rounds // 2] / 1e9, 1)
    return found


if __name__ == "__main__":
    main()
