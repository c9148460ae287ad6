"""A loop of Hugging Face Accelerate trains a Vitrail model; `vitrail.save` writes what every command takes.

    pip install vitrail accelerate
    accelerate launch examples/train_with_accelerate.py flowers/ --epochs 10 --out own-flowers
    vitrail predict own-flowers new.jpg

The folder has a subfolder of pictures for each class. Each process takes its share of every batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import vitrail


def main() -> None:
    """Train on a folder and save."""
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("source", type=Path, help="a folder with a subfolder for each class")
    words.add_argument("--out", type=Path, required=True, help="the folder of the trained model")
    words.add_argument("--epochs", type=int, default=10)
    words.add_argument("--model", default="vit_pico_patch4_28")
    options = words.parse_args()

    files = sorted(path for path in options.source.glob("*/*") if path.is_file())
    classes = sorted({path.parent.name for path in files})
    labels = torch.tensor([classes.index(path.parent.name) for path in files])

    accelerator = Accelerator()
    model = vitrail.create(options.model, outputs=len(classes))
    batches = DataLoader(TensorDataset(model.preprocess(files), labels), batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    model.train()
    for epoch in range(options.epochs):
        total = 0.0
        for images, targets in batches:
            loss = F.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += loss.item()
        accelerator.print(f"epoch {epoch + 1} of {options.epochs}: loss {total / len(batches):.4f}")

    if accelerator.is_main_process:
        vitrail.save(accelerator.unwrap_model(model), options.out, classes=classes)


if __name__ == "__main__":
    main()
