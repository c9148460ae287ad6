"""The shape of a plain Vision Transformer, as one frozen value that `config.json` and `plan.toml` can hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..config.keywords import explain_class_keywords
from ..errors import UsageError
from ..spec import Grid

Patches = Literal["conv", "linear", "t2t-transformer", "t2t-performer"]
Positions = Literal[
    "learned", "indexed", "sinusoid", "sincos2d", "sincos2d-rows", "sincos2d-timm", "sincos2d-moco", "none"
]
Resample = Literal[
    "bicubic-antialias",
    "bicubic",
    "bicubic-offset",
    "bicubic-corners",
    "bilinear",
    "bilinear-corners",
    "bilinear-antialias",
    "geometric",
]
RotaryKind = Literal["none", "axial", "from-one", "dinov3", "eva02", "rope-vit", "pe", "mixed"]
Pool = Literal["class", "mean", "class+mean", "mean-all", "attention", "patches"]
Head = Literal["linear", "tanh", "bank"]
MLPKind = Literal["plain", "gated", "gated-packed"]
AttentionChoice = Literal["auto", "fused", "open"]
Init = Literal["vitrail", "truncated", "torch", "jax", "mae", "dinov2", "torchvision", "timm", "ijepa", "mimetic"]
Norm = Literal["LayerNorm", "RMSNorm"]
Activation = Literal["GELU", "GELUTanh", "QuickGELU", "ReLU", "SiLU", "Tanh", "ELU", "LeakyReLU", "Mish"]
FIXED_POSITIONS = ("sinusoid", "sincos2d", "sincos2d-rows", "sincos2d-timm", "sincos2d-moco")
"""Kinds of positions whose table is computed, not learned."""
T2T_PATCHES = ("t2t-transformer", "t2t-performer")
"""Kinds of patches that are soft splits of Tokens-to-Token ViT."""
BASED_ROTARY: dict[str, float] = {"eva02": 10000.0, "rope-vit": 100.0, "pe": 10000.0}
"""Kinds of rotary positions for which `rotary_base` and `rotary_grid` may be given, with their usual base."""


@explain_class_keywords
@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Shape of a plain Vision Transformer (Dosovitskiy et al. 2020). Sizes in pixels, height before width."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width that the model was made for."""
    patch: tuple[int, int] = (16, 16)
    """Height and width of one patch."""
    channels: int = 3
    """Channels of an image."""
    width: int = 768
    """Numbers per token."""
    depth: int = 12
    """Blocks."""
    heads: int = 12
    """Attention heads."""
    head_width: int | None = None
    """Numbers per head; width / heads unless given."""
    mlp_width: int = 3072
    """Hidden width of the MLP."""
    outputs: int = 1000
    """Outputs of the head per image, or per patch with pool="patches" and a linear head; 0 gives the pooled
    features."""
    patches: Patches = "conv"
    """How the projection of patches is stored: a convolution kernel or a matrix (the function is the same); or the soft
    splits of Tokens-to-Token ViT, between them transformer or performer blocks (always with LayerNorm and GELU)."""
    patch_bias: bool = True
    """Bias of the projection of patches."""
    patch_norms: bool = False
    """Normalise every flattened patch before the projection and every token after it (vit-pytorch)."""
    token_norm: bool = False
    """Normalise every patch token after the projection, before positions are added (AIMv2)."""
    pad: bool = False
    """Pad images with zeros at the right and the bottom to whole patches, instead of refusing them."""
    class_token: bool = True
    """Put a learned class token before the patches."""
    distillation_token: bool = False
    """Put a learned distillation token behind the class token (DeiT)."""
    registers: int = 0
    """Learned register tokens before the patches (Darcet et al. 2023); they get no positions and are in no mean."""
    positions: Positions = "learned"
    """What is added to the tokens: a learned table, an indexed (embedding) table, fixed waves over the token's
    number (sinusoid) or over rows and columns (sincos2d in MAE's order, and three other orders), or nothing."""
    class_position: bool = True
    """The position table has first rows for the class and the distillation token."""
    resample: Resample = "bicubic-antialias"
    """How a learned table is resampled to another grid, see model/positions.py."""
    rotary: RotaryKind = "none"
    """Rotation of queries and keys by row and column: axial is ours, from-one is that of xray_vit_patch16_224; the
    others are those of DINOv3, EVA-02, RoPE-ViT, Perception Encoder (pe), and RoPE-ViT's learned one (mixed)."""
    rotary_base: float | None = None
    """Base of the frequencies of eva02, rope-vit and pe; 10000, 100 and 10000 unless given."""
    rotary_grid: tuple[int, int] | None = None
    """Rows and columns of patches to which these three scale the places of any other grid; None for no scaling."""
    rotary_prefix: bool = False
    """Rotate the tokens before the patches too, by learned angles (MLCD's class token, the registers of ViT-5)."""
    relative: int = 0
    """Relative row and column tables on keys and values (Shaw et al. 2018), clipped at this distance; 0 for none."""
    relative_bias: bool = False
    """Add to the products of queries and keys a learned number for each head and offset between patches (BEiT)."""
    pre_norm: bool = False
    """Normalise the tokens before the first block (CLIP)."""
    qkv_bias: bool = True
    """Bias of the joint projection to queries, keys and values."""
    key_bias: bool = True
    """That bias also on the keys (DINOv3 has none there)."""
    qk_norm: bool = False
    """Normalise every query and key over its head."""
    qk_norm_joint: bool = False
    """That norm is over all heads of a token together (InternViT-6B)."""
    qk_scale: float | None = None
    """Factor on the products of queries and keys; head width ** -0.5 unless given."""
    out_bias: bool = True
    """Bias of the attention's output projection."""
    attention_norm: bool = False
    """Normalise what all heads give together, before the output projection (sub-LN, as BEiT-3 and EVA-02's CLIP)."""
    norm: Norm = "LayerNorm"
    """Class of every normalisation, by its torch name."""
    norm_eps: float = 1e-6
    """Added to the variance inside every normalisation."""
    mlp: MLPKind = "plain"
    """plain: two matrices; gated: activation(gate(x)) * fc1(x) before the second (SwiGLU), gate and fc1 as two
    matrices or packed in one, gate first."""
    mlp_bias: bool = True
    """Biases of the MLP."""
    mlp_norm: bool = False
    """Normalise the hidden numbers of the MLP before its last matrix (sub-LN, as BEiT-3 and EVA-02)."""
    activation: Activation = "GELU"
    """Class of the MLP's activation, by its torch name."""
    layer_scale: float | None = None
    """Initial value of a learned factor per channel at the end of every branch (Touvron et al. 2021); None for none."""
    parallel: bool = False
    """Attention and MLP read the same normalised tokens and are added together (Dehghani et al. 2023)."""
    post_norm: bool = False
    """Normalise the output of each branch instead of its input (Liu et al. 2022, residual post-norm)."""
    final_norm: bool = True
    """Normalise the tokens after the last block."""
    pooled_norm: bool = False
    """Normalise the pooled vector."""
    pool: Pool = "class"
    """Input of the head: the class token, the mean of the patch tokens, both side by side, the mean of all tokens
    (mean-all), attention of a learned probe to all tokens (attention), or every patch token by itself (patches). The
    layers of attention are plain, with biases and without dropout, whatever the blocks have."""
    pool_blocks: int = 1
    """How many of the last blocks the pooling reads, side by side, each through the final norm (DINOv2's linear
    evaluation, Oquab et al. 2023, reads 4)."""
    pool_every: int = 1
    """Distance between these blocks: pool_blocks=4 and pool_every=2 read blocks 6, 8, 10 and 12 of 12."""
    pool_heads: int | None = None
    """Attention heads of the probe; heads unless given."""
    pool_mlp_width: int | None = None
    """Hidden width of the MLP behind the probe; mlp_width unless given."""
    head: Head = "linear"
    """One matrix; a hidden layer with tanh before it (the ViT paper's pre-training head); or bank: patches of good
    pictures, from which every patch has a distance, see model/patch_bank.py."""
    bank_size: int = 0
    """Patches in the bank, which are stored as float16; 0 with any other head."""
    head_bias: bool = True
    """Bias of the head's last matrix."""
    upsample: int = 1
    """With pool="patches" and a linear head: rows and columns of parts of every patch that have outputs too, which are
    added to those of the patch (sub-pixel convolution, Shi et al. 2016); 1 for none."""
    queries: int = 0
    """With upsample above 1: learned queries, whose classes and masks give the outputs of the parts (EoMT, Kerssies et
    al. 2025), see model/mask_queries.py; 0 for none."""
    query_blocks: int = 4
    """Last blocks in which the queries read the patches; without effect with queries=0."""
    distillation_head: bool = False
    """A second head on the distillation token; the outputs are the mean of both (DeiT)."""
    dropout: float = 0.0
    """Dropout on the embeddings, in training only; as the next four."""
    attention_dropout: float = 0.0
    """Dropout on the attention weights."""
    mlp_dropout: float = 0.0
    """Dropout after the activation and after the second matrix of the MLP."""
    drop_path: float = 0.0
    """Stochastic depth: chance that an image skips a branch, rising linearly from 0 to this at the last block."""
    tiles: tuple[int, int] = (1, 1)
    """Rows and columns of tiles that an image is cut into, each of `image_size`; where the head is on patches
    (pool="patches"), whose grid they share."""
    tile_overlap: int = 0
    """Patches that a tile has in common with the next one."""
    grad_checkpointing: bool = False
    """Compute every block again in the backward pass instead of storing its activations: slower, less memory."""
    init: Init = "truncated"
    """Initial values, see model/init.py."""
    attention: AttentionChoice = "auto"
    """auto uses the measured table of model/attention.py; fused and open force one of the two equal paths."""

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_grid()
        self._check_rates()
        self._check_combinations()

    def _check_counts(self) -> None:
        counts = {
            "image height": self.image_size[0],
            "image width": self.image_size[1],
            "patch height": self.patch[0],
            "patch width": self.patch[1],
            "channels": self.channels,
            "width": self.width,
            "heads": self.heads,
            "head_width": 1 if self.head_width is None else self.head_width,
            "mlp_width": self.mlp_width,
            "pool_heads": self.probe_heads,
            "pool_mlp_width": self.probe_mlp_width,
            "rotary_grid": min(self.rotary_grid or (1,)),
        }
        counts |= {"upsample": self.upsample, "rows of tiles": self.tiles[0], "columns of tiles": self.tiles[1]}
        for name, count in counts.items():
            if count < 1:
                raise UsageError(f"{name} must be at least 1. Got {count}.")
        if self.depth < 0 or self.outputs < 0:
            raise UsageError(f"depth and outputs must not be negative. Got depth={self.depth}, outputs={self.outputs}.")
        if self.bank_size < 0 or self.queries < 0:
            raise UsageError(
                f"bank_size and queries must be 0 or more. Got bank_size={self.bank_size}, queries={self.queries}."
            )
        if self.registers < 0 or self.relative < 0:
            raise UsageError(
                "registers and relative must not be negative. "
                f"Got registers={self.registers}, relative={self.relative}."
            )
        if self.head_width is None and self.width % self.heads:
            raise UsageError(f"width must be a multiple of heads. Got width={self.width}, heads={self.heads}.")

    def _check_grid(self) -> None:
        if self.pad:
            return
        for side, pixels, patch in zip(("height", "width"), self.image_size, self.patch, strict=True):
            if pixels % patch:
                below, above = pixels // patch * patch, -(-pixels // patch) * patch
                near = f"{below} or {above}" if below else f"{above}"
                raise UsageError(
                    f"The image {side} {pixels} is not a multiple of the patch {side} {patch}. Use {near}, or pad=true."
                )

    def _check_rates(self) -> None:
        rates = {
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "mlp_dropout": self.mlp_dropout,
            "drop_path": self.drop_path,
        }
        for name, rate in rates.items():
            if not 0 <= rate < 1:
                raise UsageError(f"{name} must lie in 0 <= rate < 1. Got {rate}.")
        if not 0 <= self.norm_eps <= 1:
            raise UsageError(f"norm_eps must lie in 0..1. Got {self.norm_eps}.")
        if self.qk_scale is not None and not 1e-6 <= abs(self.qk_scale) <= 1e6:
            raise UsageError(f"qk_scale must be from 1e-6 to 1e6 in size. Got {self.qk_scale}.")
        if self.rotary_base is not None and not 1 < self.rotary_base <= 1e9:
            raise UsageError(f"rotary_base must be above 1 and at most 1e9. Got {self.rotary_base}.")

    def _check_combinations(self) -> None:
        if "class" in self.pool and not self.class_token:
            raise UsageError(f'pool="{self.pool}" needs class_token=true. Without a class token use pool="mean".')
        if self.distillation_token and not self.class_token:
            raise UsageError("distillation_token=true needs class_token=true: it stands behind the class token.")
        if self.distillation_head and not (self.distillation_token and self.pool == "class"):
            raise UsageError('distillation_head=true needs distillation_token=true and pool="class".')
        if self.distillation_head and self.pooled_norm:
            raise UsageError("distillation_head=true needs pooled_norm=false: it has two pooled vectors, not one.")
        if self.patch_norms and self.patches != "linear":
            raise UsageError(f'patch_norms=true needs patches="linear". Got patches="{self.patches}".')
        if not 1 <= self.pool_blocks <= max(1, self.depth):
            raise UsageError(f"pool_blocks must lie in 1..{max(1, self.depth)} (depth). Got {self.pool_blocks}.")
        if self.pool_every < 1 or self.pool_span > max(1, self.depth):
            raise UsageError(
                f"pool_every must be at least 1, and (pool_blocks - 1) * pool_every + 1 at most {max(1, self.depth)} "
                f"(depth). Got pool_every={self.pool_every} with pool_blocks={self.pool_blocks}."
            )
        if self.pool_blocks > 1 and (self.pool == "attention" or self.distillation_head):
            raise UsageError(
                f"pool_blocks={self.pool_blocks} needs pool=class, mean, class+mean, mean-all or patches, and one head."
            )
        if (self.head == "bank") != (self.bank_size > 0):
            raise UsageError(
                f'head="bank" has a bank_size, and no other head. Got head="{self.head}", {self.bank_size}.'
            )
        if self.head == "bank" and (self.pool != "patches" or self.outputs != 1):
            raise UsageError(
                'head="bank" needs pool="patches" and outputs=1, the score. '
                f'Got pool="{self.pool}" and outputs={self.outputs}.'
            )
        if self.is_tiled and (not (self.head == "bank" or self.is_dense) or self.pad):
            raise UsageError(
                'tiles need pool="patches", with head="bank" or outputs, and pad=false. Got '
                f'pool="{self.pool}", head="{self.head}", outputs={self.outputs} and pad={self.pad}.'
            )
        if self.upsample > 1 and (not self.is_dense or self.upsample > min(self.patch)):
            raise UsageError(
                'upsample needs pool="patches" and a linear head with outputs, and is at most the side of a patch. '
                f'Got upsample={self.upsample}, pool="{self.pool}", head="{self.head}", patch={self.patch}.'
            )
        if self.queries and (self.upsample == 1 or not 1 <= self.query_blocks <= self.depth):
            raise UsageError(
                f"queries need upsample of 2 or more, and query_blocks of 1 to {self.depth} (depth). Got "
                f"queries={self.queries}, upsample={self.upsample}, query_blocks={self.query_blocks}."
            )
        if self.queries and (self.rotary != "none" or self.relative or self.relative_bias):
            raise UsageError(
                'queries have no place in the image, so they need a model whose blocks know none: rotary="none", '
                f"relative=0 and relative_bias=false. Got rotary={self.rotary!r}, relative={self.relative}, "
                f"relative_bias={self.relative_bias}."
            )
        if not 0 <= self.tile_overlap < min(self.grid):
            raise UsageError(f"tile_overlap must lie in 0..{min(self.grid) - 1} patches. Got {self.tile_overlap}.")
        if self.pool == "patches" and self.head == "tanh" and self.outputs:
            raise UsageError('pool="patches" needs head="bank" or "linear", or outputs=0. Got head="tanh".')
        if self.qk_norm_joint and not self.qk_norm:
            raise UsageError("qk_norm_joint=true needs qk_norm=true: it says over what that norm is.")
        if self.relative and self.attention == "fused":
            raise UsageError('relative positions change the values, which no fused kernel does. Use attention="auto".')
        if self.pool == "attention" and self.width % self.probe_heads:
            name = "heads" if self.pool_heads is None else "pool_heads"
            raise UsageError(
                f'pool="attention" needs a width that is a multiple of {name}. Got {self.width}, {self.probe_heads}.'
            )
        if self.post_norm and self.parallel:
            raise UsageError("post_norm=true needs parallel=false: parallel branches share the norm of their input.")
        self._check_soft_split()
        self._check_positions()

    def _check_soft_split(self) -> None:
        if self.patches in T2T_PATCHES and (self.patch != (16, 16) or self.pad):
            raise UsageError(f'patches="{self.patches}" needs patch=(16, 16) and pad=false. Got patch={self.patch}.')
        if self.patches in T2T_PATCHES and not self.patch_bias:
            raise UsageError(f'patches="{self.patches}" needs patch_bias=true: its projection has a bias.')
        if self.patches in T2T_PATCHES and self.token_norm:
            raise UsageError(f'patches="{self.patches}" needs token_norm=false.')

    def _check_positions(self) -> None:
        if self.rotary != "none" and self.head_dim % 4:
            raise UsageError(
                f"Rotary positions need a head width that is a multiple of 4. Got {self.head_dim} (width / heads)."
            )
        if self.rotary not in BASED_ROTARY and (self.rotary_base, self.rotary_grid) != (None, None):
            raise UsageError(
                f'rotary_base and rotary_grid need rotary="eva02", "rope-vit" or "pe". Got rotary="{self.rotary}".'
            )
        if self.rotary_prefix and (self.rotary in ("none", "mixed") or not self.prefix):
            raise UsageError(
                "rotary_prefix=true needs rotary positions other than mixed, and tokens before the patches. Got "
                f'rotary="{self.rotary}" and {self.describe_prefix or "no such tokens"}.'
            )
        if self.relative_bias and (self.relative or self.prefix > self.class_token):
            raise UsageError(
                "relative_bias=true knows patches and a class token: it needs registers=0, distillation_token=false "
                f"and relative=0. Got {self.describe_prefix or 'no prefix tokens'}, relative={self.relative}."
            )
        if self.resample == "geometric" and self.positions in ("learned", "indexed"):
            raise UsageError('resample="geometric" is a rule for relative_bias; positions= needs another one.')
        if self.positions.startswith("sincos2d") and self.width % 4:
            raise UsageError(f"{self.positions} positions need a width that is a multiple of 4. Got {self.width}.")
        if self.positions == "sincos2d-moco" and self.width < 8:
            raise UsageError(f"sincos2d-moco positions need a width of at least 8. Got {self.width}.")
        if self.positions == "sinusoid" and self.width % 2:
            raise UsageError(f"sinusoid positions need an even width. Got {self.width}.")

    @property
    def is_dense(self) -> bool:
        """Whether the outputs are of patches, [B, N, K], as in segmentation."""
        return self.pool == "patches" and self.head == "linear" and self.outputs > 0

    @property
    def head_outputs(self) -> int:
        """Outputs of each vector that the head reads: of the image or patch itself, and of the parts of a patch."""
        return self.outputs * (1 + self.upsample**2 * (self.upsample > 1))

    @property
    def linear_outputs(self) -> int:
        """Those of them that the head's last matrix gives; queries give the others."""
        return self.outputs if self.queries else self.head_outputs

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the outputs of one image."""
        return (self.input_grid.patches, self.head_outputs) if self.is_dense else (self.outputs,)

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches of an image of `image_size`."""
        return Grid(*(math.ceil(pixels / patch) for pixels, patch in zip(self.image_size, self.patch, strict=True)))

    @property
    def is_tiled(self) -> bool:
        """Whether images are cut into tiles."""
        return self.tiles != (1, 1)

    @property
    def input_grid(self) -> Grid:
        """Rows and columns of patches of a whole image: `grid`, or with tiles that of all of them."""
        sides = zip(self.grid, self.tiles, strict=True)
        return Grid(*(side + (count - 1) * (side - self.tile_overlap) for side, count in sides))

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of a whole image: `image_size`, or with tiles that of all of them."""
        if not self.is_tiled:
            return self.image_size
        return self.input_grid.rows * self.patch[0], self.input_grid.columns * self.patch[1]

    @property
    def prefix(self) -> int:
        """Tokens before the patches (R): class, distillation, registers, in this order."""
        return self.class_token + self.distillation_token + self.registers

    @property
    def pool_tokens(self) -> int | None:
        """How many of the first tokens the pooling reads; None for all."""
        if self.distillation_head:
            return 2
        return 1 if self.pool == "class" else None

    @property
    def describe_prefix(self) -> str:
        """The tokens before the patches, for messages: such as "the class token, 4 registers"."""
        words = ("the class token" * self.class_token, "the distillation token" * self.distillation_token)
        return ", ".join(word for word in (*words, f"{self.registers} registers" * bool(self.registers)) if word)

    @property
    def tokens(self) -> int:
        """Tokens that the encoder sees (T)."""
        return self.prefix + self.grid.patches

    @property
    def table_prefix(self) -> int:
        """First rows of the position table, for the class and the distillation token."""
        return (self.class_token + self.distillation_token) * self.class_position

    @property
    def table_rows(self) -> int:
        """Rows of the position table."""
        return self.table_prefix + self.grid.patches

    @property
    def head_dim(self) -> int:
        """Numbers per head (d)."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def attention_width(self) -> int:
        """Numbers of all heads together, A * d."""
        return self.heads * self.head_dim

    @property
    def probe_heads(self) -> int:
        """Attention heads of a probe."""
        return self.heads if self.pool_heads is None else self.pool_heads

    @property
    def probe_mlp_width(self) -> int:
        """Hidden width of the MLP behind a probe."""
        return self.mlp_width if self.pool_mlp_width is None else self.pool_mlp_width

    @property
    def patch_dim(self) -> int:
        """Numbers in one flattened patch."""
        return self.patch[0] * self.patch[1] * self.channels

    @property
    def pool_span(self) -> int:
        """Number of blocks from the first one that the pooling reads to the last block."""
        return (self.pool_blocks - 1) * self.pool_every + 1

    def is_pooled_block(self, block: int) -> bool:
        """Whether the pooling reads the tokens after this block, counted from 0."""
        above = self.depth - 1 - block
        return above < self.pool_span and above % self.pool_every == 0

    @property
    def pooled_width(self) -> int:
        """Numbers that one head reads per image."""
        return self.width * self.pool_blocks * (2 if self.pool == "class+mean" else 1)


# -- Limits, checked before any memory is allocated for a model of a file or a plan

MAX_PARAMETERS = 30_000_000_000
"""Parameters of the largest model that is built; the largest published plain ViT has 22 billion."""
MAX_TOKENS = 1_048_576
"""Tokens of one image, a square of 1,024 patches a side."""


def describe_oversize(config: ViTConfig) -> str:
    """What of an architecture is implausibly large: the field, its limit and its value; empty if nothing is."""
    largest = {
        "image_size": (max(config.image_size), 1_048_576),
        "patch": (max(config.patch), 1_024),
        "channels": (config.channels, 1_024),
        "width": (config.width, 65_536),
        "depth": (config.depth, 256),
        "heads": (config.heads, 1_024),
        "head_width": (config.head_dim, 65_536),
        "mlp_width": (config.mlp_width, 1_048_576),
        "outputs": (config.outputs, 10_000_000),
        "registers": (config.registers, 1_024),
        "relative": (config.relative, 1_024),
        "bank_size": (config.bank_size, 10_000_000),
        "tiles": (max(config.tiles), 256),
        "upsample": (config.upsample, 64),
        "queries": (config.queries, 1_024),
        "pool_heads": (config.probe_heads, 1_024),
        "pool_mlp_width": (config.probe_mlp_width, 1_048_576),
        "rotary_grid": (max(config.rotary_grid or (1,)), 1_048_576),
    }
    for name, (value, limit) in largest.items():
        if value > limit:
            return f"{name} must be at most {limit:,}. Got {value:,}."
    if config.tokens > MAX_TOKENS:
        return f"image_size and patch must make at most {MAX_TOKENS:,} tokens. Got {config.tokens:,}."
    if (count := _estimate_parameters(config)) > MAX_PARAMETERS:
        parameters = f"a model may have at most {MAX_PARAMETERS:,} parameters"
        return f"{parameters}. Width, depth, mlp_width and outputs make {count:,}."
    return ""


def _estimate_parameters(config: ViTConfig) -> int:
    """Parameters without norms and biases, and the numbers of a bank."""
    mlp = config.width * config.mlp_width * (2 if config.mlp == "plain" else 3)
    blocks = config.depth * (4 * config.width * config.attention_width + mlp)
    table = config.table_rows * config.width if config.positions != "none" else 0
    head = config.pooled_width * (config.bank_size or config.head_outputs)
    return blocks + table + config.patch_dim * config.width + head
