"""The fields of `ViTConfig` as typed keywords of `vitrail.create`, written by docs/keywords_of_create.py."""

from __future__ import annotations

from typing import TypedDict

from .config import (
    Activation,
    AttentionChoice,
    Head,
    Init,
    MLPKind,
    Norm,
    Patches,
    Pool,
    Positions,
    Resample,
    RotaryKind,
)


class ViTKeywords(TypedDict, total=False):
    """Fields of `ViTConfig`; those that are not given are those of the named model."""

    image_size: int | tuple[int, int]
    """Height and width that the model was made for."""
    patch: int | tuple[int, int]
    """Height and width of one patch."""
    channels: int
    """Channels of an image."""
    width: int
    """Numbers per token."""
    depth: int
    """Blocks."""
    heads: int
    """Attention heads."""
    head_width: int | None
    """Numbers per head; width / heads unless given."""
    mlp_width: int
    """Hidden width of the MLP."""
    outputs: int
    """Outputs of the head per image, or per patch with pool="patches" and a linear head; 0 gives the pooled
    features."""
    patches: Patches
    """How the projection of patches is stored: a convolution kernel or a matrix (the function is the same); or the soft
    splits of Tokens-to-Token ViT, between them transformer or performer blocks (always with LayerNorm and GELU)."""
    patch_bias: bool
    """Bias of the projection of patches."""
    patch_norms: bool
    """Normalise every flattened patch before the projection and every token after it (vit-pytorch)."""
    token_norm: bool
    """Normalise every patch token after the projection, before positions are added (AIMv2)."""
    pad: bool
    """Pad images with zeros at the right and the bottom to whole patches, instead of refusing them."""
    class_token: bool
    """Put a learned class token before the patches."""
    distillation_token: bool
    """Put a learned distillation token behind the class token (DeiT)."""
    registers: int
    """Learned register tokens before the patches (Darcet et al. 2023); they get no positions and are in no mean."""
    positions: Positions
    """What is added to the tokens: a learned table, an indexed (embedding) table, fixed waves over the token's
    number (sinusoid) or over rows and columns (sincos2d in MAE's order, and three other orders), or nothing."""
    class_position: bool
    """The position table has first rows for the class and the distillation token."""
    resample: Resample
    """How a learned table is resampled to another grid, see model/positions.py."""
    rotary: RotaryKind
    """Rotation of queries and keys by row and column: axial is ours, from-one is that of xray_vit_patch16_224; the
    others are those of DINOv3, EVA-02, RoPE-ViT, Perception Encoder (pe), and RoPE-ViT's learned one (mixed)."""
    rotary_base: float | None
    """Base of the frequencies of eva02, rope-vit and pe; 10000, 100 and 10000 unless given."""
    rotary_grid: tuple[int, int] | None
    """Rows and columns of patches to which these three scale the places of any other grid; None for no scaling."""
    rotary_prefix: bool
    """Rotate the tokens before the patches too, by learned angles (MLCD's class token, the registers of ViT-5)."""
    relative: int
    """Relative row and column tables on keys and values (Shaw et al. 2018), clipped at this distance; 0 for none."""
    relative_bias: bool
    """Add to the products of queries and keys a learned number for each head and offset between patches (BEiT)."""
    pre_norm: bool
    """Normalise the tokens before the first block (CLIP)."""
    qkv_bias: bool
    """Bias of the joint projection to queries, keys and values."""
    key_bias: bool
    """That bias also on the keys (DINOv3 has none there)."""
    qk_norm: bool
    """Normalise every query and key over its head."""
    qk_norm_joint: bool
    """That norm is over all heads of a token together (InternViT-6B)."""
    qk_scale: float | None
    """Factor on the products of queries and keys; head width ** -0.5 unless given."""
    out_bias: bool
    """Bias of the attention's output projection."""
    attention_norm: bool
    """Normalise what all heads give together, before the output projection (sub-LN, as BEiT-3 and EVA-02's CLIP)."""
    norm: Norm
    """Class of every normalisation, by its torch name."""
    norm_eps: float
    """Added to the variance inside every normalisation."""
    mlp: MLPKind
    """plain: two matrices; gated: activation(gate(x)) * fc1(x) before the second (SwiGLU), gate and fc1 as two
    matrices or packed in one, gate first."""
    mlp_bias: bool
    """Biases of the MLP."""
    mlp_norm: bool
    """Normalise the hidden numbers of the MLP before its last matrix (sub-LN, as BEiT-3 and EVA-02)."""
    activation: Activation
    """Class of the MLP's activation, by its torch name."""
    layer_scale: float | None
    """Initial value of a learned factor per channel at the end of every branch (Touvron et al. 2021); None for none."""
    parallel: bool
    """Attention and MLP read the same normalised tokens and are added together (Dehghani et al. 2023)."""
    post_norm: bool
    """Normalise the output of each branch instead of its input (Liu et al. 2022, residual post-norm)."""
    final_norm: bool
    """Normalise the tokens after the last block."""
    pooled_norm: bool
    """Normalise the pooled vector."""
    pool: Pool
    """Input of the head: the class token, the mean of the patch tokens, both side by side, the mean of all tokens
    (mean-all), attention of a learned probe to all tokens (attention), or every patch token by itself (patches). The
    layers of attention are plain, with biases and without dropout, whatever the blocks have."""
    pool_blocks: int
    """How many of the last blocks the pooling reads, side by side, each through the final norm (DINOv2's linear
    evaluation, Oquab et al. 2023, reads 4)."""
    pool_every: int
    """Distance between these blocks: pool_blocks=4 and pool_every=2 read blocks 6, 8, 10 and 12 of 12."""
    pool_heads: int | None
    """Attention heads of the probe; heads unless given."""
    pool_mlp_width: int | None
    """Hidden width of the MLP behind the probe; mlp_width unless given."""
    head: Head
    """One matrix; a hidden layer with tanh before it (the ViT paper's pre-training head); or bank: patches of good
    pictures, from which every patch has a distance, see model/patch_bank.py."""
    bank_size: int
    """Patches in the bank, which are stored as float16; 0 with any other head."""
    head_bias: bool
    """Bias of the head's last matrix."""
    upsample: int
    """With pool="patches" and a linear head: rows and columns of parts of every patch that have outputs too, which are
    added to those of the patch (sub-pixel convolution, Shi et al. 2016); 1 for none."""
    queries: int
    """With upsample above 1: learned queries, whose classes and masks give the outputs of the parts (EoMT, Kerssies et
    al. 2025), see model/mask_queries.py; 0 for none."""
    query_blocks: int
    """Last blocks in which the queries read the patches; without effect with queries=0."""
    distillation_head: bool
    """A second head on the distillation token; the outputs are the mean of both (DeiT)."""
    dropout: float
    """Dropout on the embeddings, in training only; as the next four."""
    attention_dropout: float
    """Dropout on the attention weights."""
    mlp_dropout: float
    """Dropout after the activation and after the second matrix of the MLP."""
    drop_path: float
    """Stochastic depth: chance that an image skips a branch, rising linearly from 0 to this at the last block."""
    tiles: tuple[int, int]
    """Rows and columns of tiles that an image is cut into, each of `image_size`; where the head is on patches
    (pool="patches"), whose grid they share."""
    tile_overlap: int
    """Patches that a tile has in common with the next one."""
    grad_checkpointing: bool
    """Compute every block again in the backward pass instead of storing its activations: slower, less memory."""
    init: Init
    """Initial values, see model/init.py."""
    attention: AttentionChoice
    """auto uses the measured table of model/attention.py; fused and open force one of the two equal paths."""
