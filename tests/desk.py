"""A desk with everything that the commands of the pages speak of, under the names that it has there, in miniature."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from corpus.films import film, text
from end_to_end.conftest import TINY, draw_flowers
from end_to_end.guide_data import FILMS, encoded, write_csv, xray14

KINDS = ("sound", "defective")
PICTURES = ("new.jpg", "photo.jpg", "a.jpg", "b.jpg", "new.png", "a.png", "b.png", "c.png")
Type = Callable[..., object]
"""Types a command, as tests/end_to_end/conftest.py has it; its exit code is the caller's business."""


def prepare(folder: Path, type_: Type) -> None:
    """Pictures, tables, weights of others, and runs."""
    pictures(folder)
    tables(folder)
    ward(folder)
    xray14(folder / "xray14")
    line(folder)
    weights(folder)
    train(folder, type_)


def pictures(folder: Path) -> None:
    for name in ("flowers", "flowers-later"):
        (folder / name).mkdir(parents=True)
        draw_flowers(folder / name)
    some = {"films": FILMS, "more": 3, "photos": 2, "other-machine": 5, "all_pictures": 5, "tuesday": 5}
    for name, count in some.items():
        for number in range(count):
            _write(folder / name / f"{number:03d}.png", number)
    for name in ("cells", "holdout"):
        for number in range(FILMS):
            _write(folder / name / KINDS[number % 2] / f"{number:03d}.png", number + 100 * (name == "holdout"))
    for number, name in enumerate(PICTURES):
        _write(folder / name, 200 + number)
    shutil.copy(_panes(), folder / "panes.png")


def tables(folder: Path) -> None:
    for name, place in (("cells", "cells"), ("holdout", "holdout")):
        rows = [
            (f"{place}/{KINDS[number % 2]}/{number:03d}.png", KINDS[number % 2], "pa" if number % 3 else "ap", number)
            for number in range(FILMS)
        ]
        write_csv(folder / f"{name}.csv", [("path", "kind", "view", "age"), *rows])
    names = [f"films/{number:03d}.png" for number in range(FILMS)]
    grouped = [(name, ("normal", "fracture")[number % 2], f"p{number // 2}") for number, name in enumerate(names)]
    write_csv(folder / "films.csv", [("path", "finding", "patient"), *grouped])
    found = [(name, number % 2, number // 2 % 2) for number, name in enumerate(names)]
    write_csv(folder / "findings.csv", [("path", "nodule", "effusion"), *found])
    days = [(name, f"2026-01-{5 + number:02d}", f"lot {number // 2}") for number, name in enumerate(names)]
    write_csv(folder / "stream.csv", [("path", "day", "lot"), *days])
    kinds = [(number, KINDS[number % 2]) for number in range(FILMS)]
    modules = [(f"cells/{kind}/{number:03d}.png", kind, f"{kind} {number // 4}") for number, kind in kinds]
    write_csv(folder / "modules.csv", [("path", "label", "module"), *modules])
    write_csv(folder / "suspects.csv", [("id",), ("defective/001.png",)])


def ward(folder: Path) -> None:
    """DICOM films of 12 bits, two of each patient, and what readers have found on them."""
    rows = [("study", "nodule", "effusion")]
    (folder / "dicom").mkdir()
    for number in range(160):
        study, view = f"1.2.3.{number + 1}", ("PA", "AP")[number % 2]
        told = {(0x10, 0x20): text("LO", f"p{number // 2:02d}"), (0x20, 0x0D): text("UI", study)}
        told[0x18, 0x5101] = text("CS", view)
        values = 16 * np.random.default_rng(number).integers(0, 255, (20, 24), dtype=np.uint16)
        (folder / "dicom" / f"{number:03d}.dcm").write_bytes(film(values, bits=12, more=told))
        rows.append((study, str(number % 2), ("1", "0", "")[number % 3]))
    write_csv(folder / "readings.csv", rows)


def line(folder: Path) -> None:
    """Parts of twelve lots under two cameras, every second one defective."""
    rows = [
        (f"parts/{number:03d}.png", ("good", "defective")[number % 2], number // 4, ("left", "right")[number // 2 % 2])
        for number in range(2 * FILMS)
    ]
    for number, (name, *_) in enumerate(rows):
        _write(folder / name, 300 + number)
    write_csv(folder / "parts.csv", [("path", "label", "lot", "camera"), *rows])


def weights(folder: Path) -> None:
    """Files of other libraries with random numbers in them; the small DINOv2 has its real shape."""
    import torch

    from vitrail.checkpoints.families import teaching
    from vitrail.checkpoints.rules import write_with_layout
    from vitrail.checkpoints.save import save_model
    from vitrail.files import safetensors_file
    from vitrail.model.registry import config_from_name
    from vitrail.model.vit import create_model
    from vitrail.spec import ImageSpec

    def saved(name: str, size: str, layout: str, outputs: int = 0, pixels: int = 224) -> None:
        config = replace(config_from_name(size), outputs=outputs)
        spec = ImageSpec(height=config.image_size[0], width=config.image_size[1])
        save_model(folder / name, create_model(config), spec, tuple(map(str, range(outputs))), layout)

    saved("dinov2_small", "vit_small_patch14_dinov2", "transformers")
    shutil.copytree(folder / "dinov2_small", folder / "dinov2")
    saved("B_16.npz", "vit_tiny_patch16_224", "google-npz", outputs=5)
    saved("timm", "vit_tiny_patch16_224", "timm", outputs=5)
    torch.save(safetensors_file.load_tensors(folder / "timm" / "model.safetensors"), folder / "vit.pth")
    small = replace(config_from_name("explained_vit_patch20_60x100"), width=32, depth=2, heads=4, mlp_width=48)
    torch.save(
        write_with_layout(create_model(small).state_dict(), small, teaching.EXPLAINED_LAYOUTS[0]), folder / "weights.pt"
    )


def train(folder: Path, type_: Type) -> None:
    """Runs of a few steps; those that are only compared with are copies."""
    for name, source, more in (
        ("cells", "cells.csv", ("--data.targets", "kind", "--data.test_fraction", "0.4")),
        ("films", "findings.csv", ("--data.test_fraction", "0.4")),
        ("large", "flowers", ()),
    ):
        type_("train", folder / source, *TINY, *more, "--steps", 3, "--out", folder / "runs" / name)
    for name in ("other", "a", "b", "mine", "fashion", "labels", "levels"):
        shutil.copytree(folder / "runs" / "cells", folder / "runs" / name)


def _write(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        path.write_bytes(encoded(number))
    else:
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(path)


def _panes() -> Path:
    from vitrail.explain.figures import SAMPLE_IMAGE

    return SAMPLE_IMAGE
