"""Files to a CSV of answers by other libraries, each as its users do it; a process of its own.

    python benchmarks/making/file_peers.py WAY FORMAT FOLDER CSV [MODEL]

Ways: `timm-inference` does what timm's inference.py does at its defaults; `pipeline` is transformers' at its defaults,
`pipeline-batched` with batches, workers and torch's resize; `loader` is the best that we can write by hand with torch's
DataLoader, Pillow, torchvision's resize of tensors and timm's model with the faster of its attentions. MODEL is a
folder of transformers.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor

NAME, SIZE = "vit_tiny_patch16_224", 224
TOP = 5
Rows = Iterable[tuple[str, list[float]]]


def main() -> None:
    """Answer every file of a folder."""
    from making.full_size import declare_torchvision

    declare_torchvision()
    way, number_format, folder, out, *model = sys.argv[1:]
    paths = sorted(Path(folder).glob("*.jpg"))
    if way == "timm-inference":
        write(out, timm_inference(folder, paths))
    elif way.startswith("pipeline"):
        write(out, pipeline(model[0], paths, batched=way.endswith("batched"), number_format=number_format))
    elif way == "loader":
        write(out, by_hand(paths, number_format))
    else:
        raise SystemExit(f"There is no way {way!r}.")


def write(out: str, rows: Rows) -> None:
    """One line a picture."""
    with open(out, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for name, numbers in rows:
            writer.writerow([name, *(f"{number:.6f}" for number in numbers)])


def timm_inference(folder: str, paths: list[Path]) -> Iterator[tuple[str, list[float]]]:
    """Defaults of timm 1.0's inference.py: batches of 256, two workers, float32, the most probable classes."""
    import timm
    from timm.data import create_dataset, create_loader, resolve_data_config

    model = timm.create_model(NAME).eval()
    config = resolve_data_config(model=model)
    loader = create_loader(
        create_dataset("", folder), batch_size=256, use_prefetcher=True, num_workers=2, device=torch.device("cpu"),
        img_dtype=torch.float32, **config,
    )  # fmt: skip
    names = iter(paths)
    with torch.inference_mode():
        for images, _ in loader:
            best = model(images).softmax(-1).topk(TOP).values
            yield from ((str(next(names)), row) for row in best.tolist())


def pipeline(folder: str, paths: list[Path], batched: bool, number_format: str) -> Iterator[tuple[str, list[float]]]:
    """transformers' image classification; its fast processor resizes tensors."""
    import transformers

    more = {"batch_size": 32, "num_workers": 2} if batched else {}
    dtype = torch.bfloat16 if number_format == "bfloat16" else torch.float32
    answer = transformers.pipeline("image-classification", model=folder, use_fast=True, device="cpu", dtype=dtype)
    found = answer([str(path) for path in paths], top_k=TOP, **more)
    yield from ((str(path), [one["score"] for one in row]) for path, row in zip(paths, found, strict=True))


class Files(torch.utils.data.Dataset[Tensor]):
    """Pictures decoded by Pillow, as torchvision's documentation recommends resized as tensors."""

    def __init__(self, paths: list[Path]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        from PIL import Image
        from torchvision.transforms.v2 import functional as F

        picture = F.pil_to_tensor(Image.open(self.paths[index]).convert("RGB"))
        return F.resize(picture, [SIZE, SIZE], interpolation=F.InterpolationMode.BICUBIC, antialias=True)


def by_hand(paths: list[Path], number_format: str) -> Iterator[tuple[str, list[float]]]:
    """Workers decode and resize, batches are normalised together, weights are cast once."""
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(False)
    dtype = torch.bfloat16 if number_format == "bfloat16" else torch.float32
    model = timm.create_model(NAME).eval().to(dtype)
    loader = torch.utils.data.DataLoader(Files(paths), batch_size=64, num_workers=2)
    names = iter(paths)
    with torch.inference_mode():
        for images in loader:
            answers = model(images.to(dtype).div_(127.5).sub_(1)).float().softmax(-1)
            yield from ((str(next(names)), row) for row in answers.tolist())


if __name__ == "__main__":
    main()
