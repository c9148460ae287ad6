"""A loop of Hugging Face Accelerate trains a Vitrail model; `vitrail.save` writes what every command takes.

    pip install vitrail accelerate
    accelerate launch examples/train_with_accelerate.py flowers/ own-flowers
    vitrail predict own-flowers new.jpg

The first folder has a subfolder of pictures for each class. Each process takes its share of every batch.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import vitrail

source, out = map(Path, sys.argv[1:])
files = sorted(path for path in source.glob("*/*") if path.is_file())
classes = sorted({path.parent.name for path in files})
labels = torch.tensor([classes.index(path.parent.name) for path in files])

accelerator = Accelerator()
model = vitrail.create("vit_pico_patch4_28", outputs=len(classes))
batches = DataLoader(TensorDataset(model.preprocess(files), labels), batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

model.train()
for epoch in range(10):
    total = 0.0
    for images, targets in batches:
        loss = F.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        total += loss.item()
    accelerator.print(f"epoch {epoch + 1} of 10: mean loss {total / len(batches):.4f}")

if accelerator.is_main_process:
    vitrail.save(accelerator.unwrap_model(model), out, classes=classes)
