"""Files of the three articles: written, loaded with equal outputs, and refused by name when anything is not right."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitrail.checkpoints.families.teaching import RotaryConvention, make_rotary_table
from vitrail.checkpoints.identify import LAYOUTS, identify_layout
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.checkpoints.rules import write_with_layout
from vitrail.errors import DamagedFileError, UsageError
from vitrail.files import safetensors_file as files
from vitrail.model.config import ViTConfig
from vitrail.model.registry import PRESETS
from vitrail.model.vit import ViT, create_model
from vitrail.spec import Grid

from .designs import BLOG, EXPLAINED, XRAY, furthest, random_images, random_model

DESIGNS = {"blog-conv": BLOG, "explained": EXPLAINED, "xray-rope": XRAY}
SAID = {
    "blog-conv": {"heads": 3},
    "explained": {"heads": 4, "image_size": (12, 20)},
    "xray-rope": {},
}


def written(layout: str, config: ViTConfig | None = None) -> tuple[ViT, dict[str, Tensor]]:
    model = random_model(config or DESIGNS[layout])
    return model, write_with_layout(model.state_dict(), model.config, LAYOUTS[layout])


def save(folder: Path, tensors: dict[str, Tensor]) -> Path:
    files.save_tensors(folder / "weights.safetensors", tensors, {})
    return folder / "weights.safetensors"


@pytest.mark.parametrize("layout", DESIGNS)
@torch.no_grad()
def test_a_written_file_loads_with_equal_outputs_and_the_same_architecture(layout: str, tmp_path: Path) -> None:
    model, tensors = written(layout)
    loaded = load_checkpoint(save(tmp_path, tensors), LoadOptions(**SAID[layout]))
    images = random_images(model.config)
    assert furthest(model(images), loaded.model(images)) == 0
    assert loaded.config == model.config and loaded.audit.layout == layout
    assert [row.theirs for row in loaded.audit.rows] == sorted(tensors)
    again = write_with_layout(loaded.model.state_dict(), loaded.config, LAYOUTS[layout])
    assert again.keys() == tensors.keys()


@pytest.mark.parametrize("layout", DESIGNS)
@torch.no_grad()
def test_a_pickled_file_loads_too_and_the_models_tensors_are_its_own(layout: str, tmp_path: Path) -> None:
    model, tensors = written(layout)
    torch.save(tensors, tmp_path / "weights.pt")
    loaded = load_checkpoint(tmp_path / "weights.pt", LoadOptions(layout=layout, **SAID[layout]))
    images = random_images(model.config)
    assert furthest(model(images), loaded.model(images)) == 0
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())


@pytest.mark.parametrize(("layout", "size"), [("blog-conv", (16, 40)), ("explained", (32, 8)), ("xray-rope", (8, 28))])
@torch.no_grad()
def test_a_rectangular_model_loads_when_its_size_is_said(layout: str, size: tuple[int, int], tmp_path: Path) -> None:
    model, tensors = written(layout, replace(DESIGNS[layout], image_size=size))
    loaded = load_checkpoint(save(tmp_path, tensors), LoadOptions(**{**SAID[layout], "image_size": size}))
    images = random_images(model.config)
    assert loaded.config.grid == model.config.grid and furthest(model(images), loaded.model(images)) == 0


@torch.no_grad()
def test_an_explained_file_with_qkv_biases_and_two_channels_tells_both(tmp_path: Path) -> None:
    model, tensors = written("explained", replace(EXPLAINED, qkv_bias=True, channels=2))
    loaded = load_checkpoint(save(tmp_path, tensors), LoadOptions(**SAID["explained"]))
    assert loaded.config.qkv_bias and loaded.config.channels == 2
    images = random_images(model.config)
    assert furthest(model(images), loaded.model(images)) == 0


def test_the_blog_file_carries_the_unused_norms_and_its_shared_tensors_twice() -> None:
    config = PRESETS["blog_vit_base_patch16_224"]
    with torch.device("meta"):
        tensors = write_with_layout(ViT(config).state_dict(), config, LAYOUTS["blog-conv"])
    once = {name: tensor.numel() for name, tensor in tensors.items() if ".mlp.seq." not in name}
    assert sum(once.values()) == 86_586_088
    assert tensors["vit.3.mlp.seq.0.weight"].shape == tensors["vit.3.mlp.linear1.weight"].shape == (3072, 768)


@pytest.mark.wide
@pytest.mark.first(1)
@pytest.mark.parametrize("layout", DESIGNS)
def test_every_tensor_renamed_is_an_error_that_names_it_and_its_new_name(layout: str, tmp_path: Path) -> None:
    _, tensors = written(layout)
    for name in tensors:
        renamed = {other if other != name else f"{name}_x": tensor for other, tensor in tensors.items()}
        with pytest.raises(DamagedFileError, match=re.escape(name) + r"\b") as error:
            load_checkpoint(save(tmp_path, renamed), LoadOptions(**SAID[layout]))
        assert f"{name}_x" in str(error.value)


@pytest.mark.first(1)
@pytest.mark.parametrize("layout", DESIGNS)
def test_every_tensor_missing_is_an_error_that_names_it(layout: str, tmp_path: Path) -> None:
    _, tensors = written(layout)
    for name in tensors:
        fewer = {other: tensor for other, tensor in tensors.items() if other != name}
        with pytest.raises(DamagedFileError, match=re.escape(name)):
            load_checkpoint(save(tmp_path, fewer), LoadOptions(**SAID[layout]))


@pytest.mark.wide
@pytest.mark.first(1)
@pytest.mark.parametrize("layout", DESIGNS)
def test_every_tensor_of_another_shape_is_an_error_that_names_it(layout: str, tmp_path: Path) -> None:
    _, tensors = written(layout)
    for name, tensor in tensors.items():
        for wrong in (tensor[None], torch.cat([tensor, tensor])):
            if ".rope." in name and wrong.ndim == 3:
                continue  # an axis of length 1 in front of a rotary table is how some save it
            with pytest.raises((DamagedFileError, UsageError), match=re.escape(name)):
                load_checkpoint(save(tmp_path, {**tensors, name: wrong}), LoadOptions(**SAID[layout]))


@pytest.mark.first(1)
@pytest.mark.parametrize("layout", DESIGNS)
def test_every_tensor_with_a_nan_is_an_error_that_names_it(layout: str, tmp_path: Path) -> None:
    _, tensors = written(layout)
    for name, tensor in tensors.items():
        broken = tensor.clone()
        broken.view(-1)[0] = torch.nan
        with pytest.raises(DamagedFileError, match=rf"1 of the {tensor.numel()} in {re.escape(name)} are NaN"):
            load_checkpoint(save(tmp_path, {**tensors, name: broken}), LoadOptions(**SAID[layout]))


@pytest.mark.parametrize("layout", DESIGNS)
def test_a_tensor_with_a_nan_is_loaded_and_noted_where_that_is_allowed(layout: str, tmp_path: Path) -> None:
    _, tensors = written(layout)
    name = next(name for name in tensors if name.endswith("weight"))
    broken = tensors[name].clone()
    broken.view(-1)[0] = torch.nan
    loaded = load_checkpoint(
        save(tmp_path, {**tensors, name: broken}), LoadOptions(**SAID[layout], allow_nonfinite=True)
    )
    (note,) = [note for note in loaded.notes if "NaN" in note]
    assert note.startswith(f"1 of the {broken.numel()} in {name} are NaN")
    assert sum(int(torch.isnan(each).sum()) for each in loaded.model.state_dict().values()) == 1


@pytest.mark.parametrize("layout", DESIGNS)
def test_an_extra_tensor_is_an_error_that_names_it_and_its_shape(layout: str, tmp_path: Path) -> None:
    _, tensors = written(layout)
    with pytest.raises(
        DamagedFileError, match=rf"does not fit the layout {layout}: 1 without a rule: ema\.decay \[2\]"
    ):
        load_checkpoint(save(tmp_path, {**tensors, "ema.decay": torch.ones(2)}), LoadOptions(**SAID[layout]))


def test_a_shared_tensor_of_the_blog_that_differs_is_an_error_that_names_both(tmp_path: Path) -> None:
    _, tensors = written("blog-conv")
    tensors["vit.1.mlp.seq.3.bias"][0] += 0.5
    message = r"vit\.1\.mlp\.seq\.3\.bias and vit\.1\.mlp\.linear2\.bias are one tensor .* differ by up to 0\.5"
    with pytest.raises(DamagedFileError, match=message):
        load_checkpoint(save(tmp_path, tensors), LoadOptions(heads=3))


def test_a_blog_file_cleaned_of_its_copies_and_unused_norms_loads(tmp_path: Path) -> None:
    _, tensors = written("blog-conv")
    clean = {name: t for name, t in tensors.items() if ".seq." not in name and not re.match(r"vit\.\d\.norm", name)}
    assert (
        load_checkpoint(save(tmp_path, clean), LoadOptions(heads=3)).audit.format_summary()
        == "layout blog-conv: 32 tensors, 32 loaded"
    )


def test_another_position_table_in_an_explained_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    _, tensors = written("explained")
    tensors["backbone.pos_embed"] = tensors["backbone.pos_embed"].roll(1, dims=2)
    with pytest.raises(DamagedFileError, match=r"backbone\.pos_embed is another table .* differ by up to [12]\."):
        load_checkpoint(save(tmp_path, tensors), LoadOptions(**SAID["explained"]))


CONVENTIONS = {
    "exponents i counted from 0": RotaryConvention(first_exponent=0),
    "places counted from 0": RotaryConvention(first_place=0),
    "rows and columns swapped": RotaryConvention(swap_axes=True),
    r"half-split": RotaryConvention(half_split=True),
    "exponents i counted from 0 and places counted from 0": RotaryConvention(first_exponent=0, first_place=0),
}


@pytest.mark.parametrize("class_row", [True, False])
@pytest.mark.parametrize("words", CONVENTIONS)
def test_rotary_tables_of_another_convention_are_an_error_that_says_which(
    words: str, class_row: bool, tmp_path: Path
) -> None:
    _, tensors = written("xray-rope")
    replace_tables(tensors, Grid(4, 4), 8, class_row, CONVENTIONS[words])
    name = re.escape("transformer_blocks.0.attn.rope.x_cos")
    with pytest.raises(DamagedFileError, match=rf"{name} is a rotary table of another convention.* with .*{words}"):
        load_checkpoint(save(tmp_path, tensors))


def test_one_strange_rotary_table_is_an_error_that_names_it(tmp_path: Path) -> None:
    _, tensors = written("xray-rope")
    tensors["transformer_blocks.1.attn.rope.y_sin"] *= 2
    with pytest.raises(
        DamagedFileError, match=r"transformer_blocks\.1\.attn\.rope\.y_sin is .* of no convention known"
    ):
        load_checkpoint(save(tmp_path, tensors))


@torch.no_grad()
def test_rotary_tables_without_the_class_row_or_with_axes_in_front_or_in_half_precision_load(tmp_path: Path) -> None:
    model, tensors = written("xray-rope")
    images = random_images(model.config)
    replace_tables(tensors, Grid(4, 4), 8, False, RotaryConvention())
    for change in (lambda table: table, lambda table: table[None, None], lambda table: table.bfloat16()):
        file = {name: change(tensor) if ".rope." in name else tensor for name, tensor in tensors.items()}
        assert furthest(load_checkpoint(save(tmp_path, file)).model(images), model(images)) == 0


@pytest.mark.parametrize("heads", [1, 2, 4, 12])
def test_the_rotary_tables_tell_the_heads_and_other_heads_are_an_error_that_names_both(
    heads: int, tmp_path: Path
) -> None:
    _, tensors = written("xray-rope", replace(XRAY, heads=heads))
    path = save(tmp_path, tensors)
    assert load_checkpoint(path).config.heads == heads
    with pytest.raises(
        UsageError, match=rf"heads=6 contradicts the file: .*x_cos, {24 // heads} wide .* says {heads}\."
    ):
        load_checkpoint(path, LoadOptions(heads=6))


@torch.no_grad()
def test_an_xray_file_saved_without_its_tables_loads_when_heads_and_size_are_said(tmp_path: Path) -> None:
    model, tensors = written("xray-rope")
    path = save(tmp_path, {name: tensor for name, tensor in tensors.items() if ".rope." not in name})
    with pytest.raises(UsageError, match=r"lacks its rotary tables does not say image_size\. Pass image_size="):
        load_checkpoint(path)
    images = random_images(model.config)
    assert furthest(load_checkpoint(path, LoadOptions(heads=3, image_size=16)).model(images), model(images)) == 0


@pytest.mark.parametrize(
    ("layout", "options", "message"),
    [
        ("blog-conv", {}, r"blog-conv does not say heads\. Pass heads=; the article's ViT-Base has 12"),
        ("blog-conv", {"heads": 5}, r"width must be a multiple of heads\. Got width=24, heads=5"),
        ("blog-conv", {"heads": 3, "channels": 1}, r"channels=1 contradicts .*conv\.weight says 3"),
        ("blog-conv", {"heads": 3, "image_size": 32}, r"makes 16 patches of 8x8, and .* has rows for 9"),
        ("explained", {"image_size": (12, 20)}, r"explained does not say heads\. .* default is 1"),
        ("explained", {"heads": 4}, r"explained does not say image_size\. Pass image_size=; .* \(60, 100\)"),
        ("explained", {"heads": 4, "image_size": (60, 80)}, r"\(60, 80\) .*cannot be cut into 15 square patches"),
        ("explained", {"heads": 4, "image_size": (12, 20), "channels": 3}, r"channels=3 contradicts .*weight says 1"),
        ("xray-rope", {"channels": 3}, r"channels=3 contradicts .* has 16 columns, not 3 times a square"),
        ("xray-rope", {"image_size": (16, 20)}, r"makes 20 patches of 4x4, and .*x_cos has 17 rows"),
    ],
)  # fmt: skip
def test_an_argument_that_is_missing_or_contradicts_the_file_is_named(
    layout: str, options: dict[str, int], message: str, tmp_path: Path
) -> None:
    _, tensors = written(layout)
    with pytest.raises(UsageError, match=message):
        load_checkpoint(save(tmp_path, tensors), LoadOptions(**options))


@pytest.mark.parametrize("layout", DESIGNS)
def test_a_layout_refuses_to_hold_another_design(layout: str) -> None:
    other = create_model(replace(DESIGNS[layout], norm_eps=1e-3))
    with pytest.raises(UsageError, match=rf"layout {layout} cannot hold this model: it means norm_eps=1e-05"):
        write_with_layout(other.state_dict(), other.config, LAYOUTS[layout])


def test_each_layout_is_known_by_its_names_and_others_are_an_error() -> None:
    for layout in DESIGNS:
        assert identify_layout(written(layout)[1]) == layout
    with pytest.raises(
        UsageError, match=r"no plain Vision Transformer .* of its 2 tensors \(conv1, fc\) no layout knows any"
    ):
        identify_layout(["conv1", "fc"])
    with pytest.raises(
        DamagedFileError, match=r"near explained, but lacks backbone\.pos_embed \(.*: backbone\.pos_emb\)"
    ):
        identify_layout({*written("explained")[1], "backbone.pos_emb"} - {"backbone.pos_embed"})


def replace_tables(
    tensors: dict[str, Tensor], grid: Grid, width: int, class_row: bool, convention: RotaryConvention
) -> None:
    for name in tensors:
        if ".rope." in name:
            tensors[name] = make_rotary_table(name.rsplit(".")[-1], grid, width, class_row, convention)
