"""Every class of transformers that the layouts cover, and how to ask it for its numbers."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from .hf import MLP, PICTURE, SHAPE, TEXT, VIT, Case, blocks

Numbers = dict[str, Tensor]
NATIVE = ("native grid",)


def run_vit(model: nn.Module, pictures: Tensor) -> Numbers:
    """A classifier of the ViT kind, or its bare model."""
    out = model(pictures, interpolate_pos_encoding=True, output_hidden_states=True)
    ends = {"outputs": out.logits} if "logits" in out else {"tokens": out.last_hidden_state}
    return {**blocks(out.hidden_states), **ends}


def run_vit_pooler(model: nn.Module, pictures: Tensor) -> Numbers:
    return {**run_vit(model, pictures), "outputs": model(pictures, interpolate_pos_encoding=True).pooler_output}


def run_mae(model: nn.Module, pictures: Tensor) -> Numbers:
    """Nothing masked, and the patches in their order."""
    encoder = getattr(model, "vit", model)
    patches = pictures.shape[-2] // 4 * (pictures.shape[-1] // 4)
    order = torch.arange(patches).float().expand(len(pictures), -1)
    out = encoder(pictures, noise=order, interpolate_pos_encoding=True, output_hidden_states=True)
    return {**blocks(out.hidden_states), "tokens": out.last_hidden_state}


def run_dino(model: nn.Module, pictures: Tensor) -> Numbers:
    """DINOv2 and DINOv3, which resize without being asked."""
    out = model(pictures, output_hidden_states=True)
    if "logits" in out:
        return {**blocks(out.hidden_states), "outputs": out.logits}
    return {**blocks(out.hidden_states), "tokens": out.last_hidden_state, "pooled": out.pooler_output}


def run_tower(model: nn.Module, pictures: Tensor) -> Numbers:
    """SigLIP's and CLIP's picture towers, alone or in the whole."""
    tower = getattr(model, "vision_model", model)
    out = tower(pictures, interpolate_pos_encoding=True, output_hidden_states=True)
    ends = {"tokens": out.last_hidden_state, "pooled": out.pooler_output}
    if hasattr(model, "visual_projection"):
        ends["outputs"] = model.visual_projection(out.pooler_output)
    return {**blocks(out.hidden_states), **ends}


def run_tower_classifier(model: nn.Module, pictures: Tensor) -> Numbers:
    out = model(pictures, output_hidden_states=True)
    return {**blocks(out.hidden_states), "outputs": out.logits}


def run_yolos(model: nn.Module, pictures: Tensor) -> Numbers:
    """The backbone, with its detection tokens, which stand last, in the place of registers."""
    out = getattr(model, "vit", model)(pictures, output_hidden_states=True)
    first = torch.arange(out.last_hidden_state.shape[1]).roll(model.config.num_detection_tokens)
    order = torch.cat([torch.tensor([0]), first[first > 0]])
    found = {**blocks(out.hidden_states), "tokens": out.last_hidden_state}
    return {name: tensor[:, order] for name, tensor in found.items()}


def run_mlcd(model: nn.Module, pictures: Tensor) -> Numbers:
    """The tower, which rotates for any grid."""
    out = model(pictures, output_hidden_states=True)
    return {**blocks(out.hidden_states), "tokens": out.last_hidden_state, "pooled": out.pooler_output}


def run_aimv2(model: nn.Module, pictures: Tensor) -> Numbers:
    """The tower, alone or in the whole; without a probe it pools nothing."""
    out = getattr(model, "vision_model", model)(pictures, output_hidden_states=True)
    found = {**blocks(out.hidden_states), "tokens": out.last_hidden_state}
    if out.pooler_output is not None:
        found["pooled"] = out.pooler_output
    if hasattr(model, "visual_projection"):
        found["outputs"] = model.visual_projection(out.pooler_output)
    return found


def run_beit(model: nn.Module, pictures: Tensor) -> Numbers:
    """A classifier or an encoder, which resize their tables without being asked."""
    out = model(pictures, output_hidden_states=True)
    if "logits" in out:
        return {**blocks(out.hidden_states), "outputs": out.logits}
    ends = {"tokens": out.last_hidden_state, "pooled": out.pooler_output}  # Data2Vec's encoder pools nothing
    return {**blocks(out.hidden_states), **{name: tensor for name, tensor in ends.items() if tensor is not None}}


def run_beit_masked(model: nn.Module, pictures: Tensor) -> Numbers:
    """The encoder of a pre-training, with the norm that the words are predicted from."""
    out = model.beit(pictures, output_hidden_states=True)
    return {**blocks(out.hidden_states), "tokens": model.layernorm(out.last_hidden_state)}


def run_internvl(model: nn.Module, pictures: Tensor) -> Numbers:
    """The image tower, alone or in a whole InternVL; it pools nothing itself: a mean of patches, or the class token."""
    tower = model.model.vision_tower if hasattr(model, "model") else model
    out = tower(pictures, output_hidden_states=True)
    tokens = out.last_hidden_state
    pooled = tokens[:, 1:].mean(dim=1) if tower.config.use_mean_pooling else tokens[:, 0]
    return {**blocks(out.hidden_states), "tokens": tokens, "outputs": pooled}


def run_naflex(model: nn.Module, pictures: Tensor) -> Numbers:
    """Flat patches, channels last, with their rows and columns and no padding."""
    grid = (pictures.shape[-2] // 4, pictures.shape[-1] // 4)
    flat = pictures.reshape(2, 3, grid[0], 4, grid[1], 4).permute(0, 2, 4, 3, 5, 1).reshape(2, grid[0] * grid[1], 48)
    arguments: dict[str, Any] = {
        "pixel_attention_mask": torch.ones(2, grid[0] * grid[1], dtype=torch.long),
        "spatial_shapes": torch.tensor([grid, grid]),
    }
    out = model(flat, **arguments, output_hidden_states=True)
    if "logits" in out:
        return {**blocks(out.hidden_states), "outputs": out.logits}
    return {**blocks(out.hidden_states), "tokens": out.last_hidden_state, "pooled": out.pooler_output}


DECODER: dict[str, Any] = {
    "decoder_hidden_size": 8, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 12, "mask_ratio": 0.0,
}  # fmt: skip
DINOV2: dict[str, Any] = {**SHAPE, **PICTURE, "mlp_ratio": 2}
NAFLEX: dict[str, Any] = {**SHAPE, **MLP, "num_patches": 36}
BOTH: dict[str, Any] = {"text_config": TEXT}
GELU: dict[str, Any] = {**VIT, "hidden_act": "gelu"}
NO_BIAS: dict[str, Any] = {"query_bias": False, "value_bias": False}
RELATIVE, SHARED = {"use_relative_position_bias": True}, {"use_shared_relative_position_bias": True}
CLASS_POSITIONS = {"use_absolute_position_embeddings": True, "use_mean_pooling": False}
ALT_TEXT: dict[str, Any] = {**TEXT, "project_dim": 6}
YOLOS: dict[str, Any] = {**VIT, "image_size": [24, 24], "num_detection_tokens": 3, "use_mid_position_embeddings": False}
QWEN: dict[str, Any] = {**TEXT, "model_type": "qwen2", "num_key_value_heads": 2}

CASES = {
    "vit": Case(lambda: hf.ViTModel(hf.ViTConfig(**VIT)), run_vit, memory="vit-memory"),
    "vit without qkv bias": Case(
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**VIT, num_labels=5, qkv_bias=False)), run_vit,
        memory="vit-memory",
    ),
    "vit classifier": Case(
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**VIT, num_labels=5)), run_vit, memory="vit-memory"
    ),
    "vit masked": Case(
        lambda: hf.ViTForMaskedImageModeling(hf.ViTConfig(**VIT, encoder_stride=4)),
        lambda model, pictures: run_vit(model.vit, pictures), memory="vit-memory",
    ),
    "deit classifier": Case(
        lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**VIT, num_labels=5)), run_vit, memory="deit-memory"
    ),
    "deit with teacher": Case(
        lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**VIT, num_labels=5)), run_vit,
        memory="deit-teacher-memory",
    ),
    "deit": Case(lambda: hf.DeiTModel(hf.DeiTConfig(**VIT)), run_vit, memory="deit-memory"),
    "mae": Case(lambda: hf.ViTMAEModel(hf.ViTMAEConfig(**VIT, **DECODER)), run_mae, memory="vit-memory"),
    "mae pre-training": Case(
        lambda: hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**VIT, **DECODER)), run_mae, memory="mae-memory"
    ),
    "msn": Case(lambda: hf.ViTMSNModel(hf.ViTMSNConfig(**VIT)), run_vit, memory="vit-memory"),
    "msn classifier": Case(
        lambda: hf.ViTMSNForImageClassification(hf.ViTMSNConfig(**VIT, num_labels=5)), run_vit, memory="vit-memory"
    ),
    "ijepa": Case(lambda: hf.IJepaModel(hf.IJepaConfig(**VIT)), run_vit, memory="ijepa-memory"),
    "ijepa classifier": Case(
        lambda: hf.IJepaForImageClassification(hf.IJepaConfig(**VIT, num_labels=5)), run_vit, memory="ijepa-memory"
    ),
    "dinov2": Case(lambda: hf.Dinov2Model(hf.Dinov2Config(**DINOV2)), run_dino, memory="dinov2-memory"),
    "dinov2 classifier": Case(
        lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**DINOV2, num_labels=5)), run_dino,
        memory="dinov2-memory",
    ),
    "dinov2 gated": Case(
        lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**DINOV2, use_swiglu_ffn=True, num_labels=5)), run_dino,
        memory="dinov2-gated-memory",
    ),
    "dinov2 with registers": Case(
        lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**DINOV2)), run_dino,
        memory="dinov2_with_registers-memory",
    ),
    "dinov2 with registers, gated classifier": Case(
        lambda: hf.Dinov2WithRegistersForImageClassification(
            hf.Dinov2WithRegistersConfig(**DINOV2, use_swiglu_ffn=True, num_register_tokens=3, num_labels=5)
        ),
        run_dino, memory="dinov2_with_registers-gated-memory",
    ),
    "dinov3": Case(
        lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**VIT, num_register_tokens=4)), run_dino, memory="dinov3-memory"
    ),
    "dinov3 gated": Case(
        lambda: hf.DINOv3ViTModel(
            hf.DINOv3ViTConfig(**VIT, num_register_tokens=4, use_gated_mlp=True, hidden_act="silu", **NO_BIAS)
        ),
        run_dino, memory="dinov3-memory",
    ),
    "siglip": Case(lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**VIT)), run_tower, memory="siglip"),
    "siglip with text": Case(
        lambda: hf.SiglipModel(hf.SiglipConfig(vision_config=VIT, **BOTH)), run_tower, memory="siglip"
    ),
    "siglip classifier": Case(
        lambda: hf.SiglipForImageClassification(hf.SiglipConfig(vision_config=VIT, **BOTH, num_labels=5)),
        run_tower_classifier, NATIVE, memory="siglip",
    ),
    "siglip2 naflex": Case(
        lambda: hf.Siglip2VisionModel(hf.Siglip2VisionConfig(**NAFLEX)), run_naflex, memory="siglip"
    ),
    "siglip2 naflex with text": Case(
        lambda: hf.Siglip2Model(hf.Siglip2Config(vision_config=NAFLEX, **BOTH)),
        lambda model, pictures: run_naflex(model.vision_model, pictures), memory="siglip",
    ),
    "siglip2 naflex classifier": Case(
        lambda: hf.Siglip2ForImageClassification(hf.Siglip2Config(vision_config=NAFLEX, **BOTH, num_labels=5)),
        run_naflex, memory="siglip",
    ),
    "clip": Case(lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**VIT)), run_tower, memory="clip"),
    "clip, gelu, projected": Case(
        lambda: hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**GELU, projection_dim=6)), run_tower,
        memory="clip",
    ),
    "clip with text": Case(
        lambda: hf.CLIPModel(hf.CLIPConfig(vision_config=VIT, **BOTH, projection_dim=6)), run_tower, memory="clip"
    ),
    "clip classifier": Case(
        lambda: hf.CLIPForImageClassification(hf.CLIPConfig(vision_config=VIT, **BOTH, num_labels=5)),
        run_tower_classifier, NATIVE, memory="clip-classifier",
    ),
    "metaclip 2": Case(
        lambda: hf.MetaClip2VisionModelWithProjection(hf.MetaClip2VisionConfig(**VIT, projection_dim=6)), run_tower,
        memory="clip",
    ),
    "metaclip 2 with text": Case(
        lambda: hf.MetaClip2Model(hf.MetaClip2Config(vision_config=VIT, **BOTH, projection_dim=6)), run_tower,
        memory="clip",
    ),
    "metaclip 2 classifier": Case(
        lambda: hf.MetaClip2ForImageClassification(hf.MetaClip2Config(vision_config=VIT, **BOTH, num_labels=5)),
        run_tower_classifier, NATIVE, memory="clip-classifier",
    ),
    "chinese-clip": Case(
        lambda: hf.ChineseCLIPVisionModel(hf.ChineseCLIPVisionConfig(**VIT)), run_tower, memory="clip"
    ),
    "chinese-clip with text": Case(
        lambda: hf.ChineseCLIPModel(hf.ChineseCLIPConfig(vision_config=VIT, **BOTH, projection_dim=6)), run_tower,
        memory="clip",
    ),
    "altclip": Case(lambda: hf.AltCLIPVisionModel(hf.AltCLIPVisionConfig(**VIT)), run_tower, memory="clip"),
    "altclip with text": Case(
        lambda: hf.AltCLIPModel(hf.AltCLIPConfig(vision_config=VIT, text_config=ALT_TEXT, projection_dim=6)), run_tower,
        memory="clip",
    ),
    "yolos": Case(lambda: hf.YolosModel(hf.YolosConfig(**YOLOS)), run_yolos),
    "yolos detector": Case(lambda: hf.YolosForObjectDetection(hf.YolosConfig(**YOLOS)), run_yolos),
    "internvl": Case(
        lambda: hf.InternVLVisionModel(hf.InternVLVisionConfig(**VIT)), run_internvl, memory="internvl"
    ),
    "internvl with class token": Case(
        lambda: hf.InternVLVisionModel(hf.InternVLVisionConfig(**VIT, use_mean_pooling=False, attention_bias=True)),
        run_internvl, memory="internvl",
    ),
    "internvl with rms norms": Case(
        lambda: hf.InternVLVisionModel(hf.InternVLVisionConfig(**VIT, norm_type="rms_norm")), run_internvl,
        memory="internvl",
    ),
    "internvl with norms of queries and keys": Case(
        lambda: hf.InternVLVisionModel(hf.InternVLVisionConfig(**VIT, norm_type="rms_norm", use_qk_norm=True)),
        run_internvl, memory="internvl",
    ),
    "internvl with text": Case(
        lambda: hf.InternVLForConditionalGeneration(
            hf.InternVLConfig(vision_config=VIT, text_config=QWEN, image_token_id=5)
        ),
        run_internvl,
    ),
    "beit": Case(lambda: hf.BeitModel(hf.BeitConfig(**VIT, **RELATIVE)), run_beit, memory="beit-memory"),
    "beit with class token and positions": Case(
        lambda: hf.BeitForImageClassification(
            hf.BeitConfig(**VIT, **RELATIVE, **CLASS_POSITIONS, num_labels=5)
        ),
        run_beit, memory="beit-memory",
    ),
    "beit with a shared table": Case(
        lambda: hf.BeitForImageClassification(hf.BeitConfig(**VIT, **SHARED, use_mask_token=True, num_labels=5)),
        run_beit,
    ),
    "beit with both tables": Case(lambda: hf.BeitModel(hf.BeitConfig(**VIT, **RELATIVE, **SHARED)), run_beit),
    "beit masked": Case(
        lambda: hf.BeitForMaskedImageModeling(hf.BeitConfig(**VIT, **SHARED, use_mask_token=True, vocab_size=9)),
        run_beit_masked,
    ),
    "beit without scales": Case(
        lambda: hf.BeitForImageClassification(hf.BeitConfig(**VIT, layer_scale_init_value=0.0, num_labels=5)), run_beit,
        memory="beit-memory",
    ),
    "data2vec": Case(
        lambda: hf.Data2VecVisionModel(hf.Data2VecVisionConfig(**VIT, **RELATIVE)), run_beit, memory="beit"
    ),
    "data2vec classifier": Case(
        lambda: hf.Data2VecVisionForImageClassification(
            hf.Data2VecVisionConfig(**VIT, **RELATIVE, **SHARED, num_labels=5)
        ),
        run_beit,
    ),
    "aimv2": Case(
        lambda: hf.Aimv2VisionModel(hf.Aimv2VisionConfig(**VIT, use_head=False)), run_aimv2, NATIVE, memory="aimv2"
    ),
    "aimv2 with biases and a probe": Case(
        lambda: hf.Aimv2VisionModel(hf.Aimv2VisionConfig(**VIT, qkv_bias=True, mlp_bias=True)), run_aimv2, NATIVE,
        memory="aimv2",
    ),
    "aimv2 of any size": Case(
        lambda: hf.Aimv2VisionModel(hf.Aimv2VisionConfig(**VIT, use_head=False, is_native=True)), run_aimv2,
    ),
    "aimv2 with text": Case(
        lambda: hf.Aimv2Model(hf.Aimv2Config(vision_config=VIT, text_config=TEXT, projection_dim=6)), run_aimv2, NATIVE,
        memory="aimv2",
    ),
    "mlcd": Case(lambda: hf.MLCDVisionModel(hf.MLCDVisionConfig(**VIT)), run_mlcd),
    "mlcd of another base": Case(
        lambda: hf.MLCDVisionModel(
            hf.MLCDVisionConfig(**VIT, rope_parameters={"rope_type": "axial", "rope_theta": 100.0})
        ),
        run_mlcd,
    ),
}  # fmt: skip
