"""ViT-5: its authors' own design, restated from their paper and code, and vit-pytorch's class of that name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from vit_pytorch.vit_5 import ViT as ViT5

from parity.differences import record
from parity.negative import refuses_every_damage
from parity.outside import furthest, pictures, randomised
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.errors import DamagedFileError, UsageError

WIDTH, HEADS, DEPTH, MLP, PATCH, REGISTERS = 32, 4, 2, 48, 4, 4


def authors_file(side: int = 16, registers: int = REGISTERS, seed: int = 0) -> dict[str, Tensor]:
    """A file of vit5_* with random numbers everywhere, under the names that its code saves."""
    generator = torch.Generator().manual_seed(seed)
    quarter = WIDTH // HEADS // 4

    def random(*shape: int) -> Tensor:
        return 0.3 * torch.randn(*shape, generator=generator)

    tensors = {
        "cls_token": random(1, 1, WIDTH),
        "pos_embed": random(1, (side // PATCH) ** 2, WIDTH),
        "patch_embed.proj.weight": random(WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": random(WIDTH),
        "norm.weight": 1 + random(WIDTH),
        "head.weight": random(5, WIDTH),
        "head.bias": random(5),
    }
    if registers:
        tensors["reg_token"] = random(1, registers, WIDTH)
    for i in range(DEPTH):
        block = {
            "norm1.weight": 1 + random(WIDTH),
            "attn.qkv.weight": random(3 * WIDTH, WIDTH),
            "attn.q_norm.weight": 1 + random(WIDTH // HEADS),
            "attn.k_norm.weight": 1 + random(WIDTH // HEADS),
            "attn.proj.weight": random(WIDTH, WIDTH),
            "attn.proj.bias": random(WIDTH),
            "attn.rope.freqs": 10000.0 ** -(torch.arange(quarter) / quarter),
            "gamma_1": 1 + random(WIDTH),
            "norm2.weight": 1 + random(WIDTH),
            "mlp.fc1.weight": random(MLP, WIDTH),
            "mlp.fc1.bias": random(MLP),
            "mlp.fc2.weight": random(WIDTH, MLP),
            "mlp.fc2.bias": random(WIDTH),
            "gamma_2": 1 + random(WIDTH),
        }
        if registers:
            block["attn.rope_reg.freqs"] = 100.0 ** -(torch.arange(quarter) / quarter)
        tensors |= {f"blocks.{i}.{name}": tensor for name, tensor in block.items()}
    return tensors


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def turn(x: Tensor, frequencies: Tensor, side: int, trained: int) -> Tensor:
    """Every token of a square turned, pair by pair of numbers: the first half of a head by rows, the second by columns.

    Args:
        x: [B, side * side, heads, head].
        trained: tokens on a side of the square that the model was trained with, to which places are scaled.
    """
    turned = x.clone()
    pairs = x.shape[-1] // 2
    for token in range(side * side):
        row, column = divmod(token, side)
        for pair in range(pairs):
            place, k = (row, pair) if pair < pairs // 2 else (column, pair - pairs // 2)
            angle = place / side * trained * frequencies[k].item()
            a, b = x[:, token, :, 2 * pair], x[:, token, :, 2 * pair + 1]
            turned[:, token, :, 2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            turned[:, token, :, 2 * pair + 1] = b * math.cos(angle) + a * math.sin(angle)
    return turned


def restated(tensors: dict[str, Tensor], images: Tensor, table: Tensor, trained: int) -> dict[str, Tensor]:
    """What the authors' code makes of pictures: tokens are class, patches, registers; the outputs by our names and in
    our order, the registers before the patches.
    """
    x = F.conv2d(images, tensors["patch_embed.proj.weight"], tensors["patch_embed.proj.bias"], stride=PATCH)
    side = x.shape[-1]
    x = x.flatten(2).mT + table
    registers = tensors.get("reg_token", x.new_zeros(1, 0, WIDTH))
    count, batch = registers.shape[1], len(images)
    x = torch.cat([tensors["cls_token"].expand(batch, -1, -1), x, registers.expand(batch, -1, -1)], dim=1)
    found = {}
    for i in range(DEPTH):
        block = {name.removeprefix(f"blocks.{i}."): tensor for name, tensor in tensors.items()}
        normal = rms(x, block["norm1.weight"])
        q, k, v = (normal @ block["attn.qkv.weight"].mT).view(batch, x.shape[1], 3, HEADS, -1).unbind(2)
        parts = []
        for y, norm in ((q, "attn.q_norm.weight"), (k, "attn.k_norm.weight")):
            own, of_patches, of_registers = rms(y, block[norm]).split([1, side * side, count], dim=1)
            of_patches = turn(of_patches, block["attn.rope.freqs"], side, trained)
            if count:
                square = math.isqrt(count)
                of_registers = turn(of_registers, block["attn.rope_reg.freqs"], square, square)
            parts.append(torch.cat([own, of_patches, of_registers], dim=1).transpose(1, 2))
        weights = (parts[0] @ parts[1].mT / (WIDTH // HEADS) ** 0.5).softmax(-1)
        attended = (weights @ v.transpose(1, 2)).transpose(1, 2).flatten(2)
        x = x + block["gamma_1"] * F.linear(attended, block["attn.proj.weight"], block["attn.proj.bias"])
        hidden = F.gelu(F.linear(rms(x, block["norm2.weight"]), block["mlp.fc1.weight"], block["mlp.fc1.bias"]))
        x = x + block["gamma_2"] * F.linear(hidden, block["mlp.fc2.weight"], block["mlp.fc2.bias"])
        own, of_patches, of_registers = x.split([1, side * side, count], dim=1)
        found[f"blocks.{i}"] = torch.cat([own, of_registers, of_patches], dim=1)
    found["outputs"] = F.linear(rms(x[:, 0], tensors["norm.weight"]), tensors["head.weight"], tensors["head.bias"])
    return found


@pytest.mark.parametrize("registers", [REGISTERS, 0])
def test_a_file_of_the_authors_gives_the_restated_outputs(registers: int, tmp_path: Path) -> None:
    tensors = authors_file(registers=registers)
    torch.save({"model": tensors}, tmp_path / "vit5.pth")
    loaded = load_checkpoint(tmp_path / "vit5.pth")
    assert (loaded.audit.layout, loaded.config.heads, loaded.config.registers) == ("vit5", HEADS, registers)
    images = pictures(16, 16)
    difference = furthest(loaded.model, restated(tensors, images, tensors["pos_embed"], 4), images)
    record("vit5", "read, native grid", difference)
    assert difference <= 1e-5


def test_another_size_scales_places_to_those_of_training(tmp_path: Path) -> None:
    tensors = authors_file()
    torch.save(tensors, tmp_path / "vit5.pth")
    loaded, images = load_checkpoint(tmp_path / "vit5.pth", LoadOptions(image_size=24)), pictures(24, 24)
    grid = tensors["pos_embed"].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    table = F.interpolate(grid, size=(6, 6), mode="bicubic", align_corners=False).flatten(2).mT
    difference = furthest(loaded.model, restated(tensors, images, table, 4), images)
    record("vit5", "read, 6x6 grid", difference)
    assert difference <= 1e-5


def test_other_frequencies_and_registers_that_fill_no_square_are_refused(tmp_path: Path) -> None:
    tensors = authors_file()
    name = "blocks.1.attn.rope.freqs"
    torch.save({**tensors, name: tensors[name] * 2}, tmp_path / "vit5.pth")
    with pytest.raises(DamagedFileError, match=rf"{name} must hold 2 frequencies .* by the base 10000"):
        load_checkpoint(tmp_path / "vit5.pth")
    torch.save({**tensors, "reg_token": torch.ones(1, 3, WIDTH)}, tmp_path / "vit5.pth")
    with pytest.raises(DamagedFileError, match=r"a square number of registers\. Got 3"):
        load_checkpoint(tmp_path / "vit5.pth")
    torch.save(tensors, tmp_path / "vit5.pth")
    with pytest.raises(UsageError, match="heads=3 contradicts the file: the number of frequencies says 4"):
        load_checkpoint(tmp_path / "vit5.pth", LoadOptions(heads=3))


@pytest.mark.wide
def test_every_damage_to_a_file_of_the_authors_is_refused_by_name(tmp_path: Path) -> None:
    def from_tensors(tensors: dict[str, Tensor]) -> None:
        torch.save(tensors, tmp_path / "damaged.pt")
        load_checkpoint(tmp_path / "damaged.pt", LoadOptions(layout="vit5"))

    optional = ("*.freqs", "head.*")  # of head and tail one or both must be there
    assert refuses_every_damage(authors_file(), from_tensors, optional=optional, decides=("reg_token", "head.*")) > 90


@pytest.mark.parametrize("registers", [3, 0])
def test_vit_pytorchs_class_gives_its_outputs(registers: int, tmp_path: Path) -> None:
    model = randomised(
        ViT5(
            image_size=16, patch_size=4, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=48, dim_head=8,
            num_registers=registers,
        )
    )  # fmt: skip
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    loaded, images = load_checkpoint(tmp_path / "weights.pt"), pictures(16, 16)
    assert (loaded.audit.variant, loaded.config.heads, loaded.config.registers) == ("vit-5", 2, registers)
    found: dict[str, Tensor] = {}
    readers = [model.transformer.layers[1][0], model.transformer.norm]
    for i, reader in enumerate(readers):
        reader.register_forward_pre_hook(lambda _, inputs, i=i: found.__setitem__(f"blocks.{i}", inputs[0]))
    with torch.no_grad():
        found["outputs"] = model(images)
    difference = furthest(loaded.model, found, images)
    record("vit-pytorch:vit-5", "read, native grid", difference)
    assert difference <= 1e-5
