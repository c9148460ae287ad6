"""The plain Vision Transformer: encoder, pooling, head, and named intermediates."""

from __future__ import annotations

import numbers
from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..argument_types import check_calls
from ..config import BELOW_MAX_NUMBER, MAX_NUMBER
from ..errors import UsageError
from ..spec import Grid
from .attention import Attention, TokenPositions, attention_weights
from .config import ViTConfig
from .init import initialise
from .layers import ACTIVATIONS, make_mlp, make_norm
from .mask_queries import MaskQueries
from .part_table import format_parts, list_parts
from .patch_bank import PatchBank
from .positions import Positions, Rotary
from .tiling import Tiling
from .tokens import TokenEmbedding


class ViT(nn.Module):
    """Images [B, C, H, W], normalised float, to outputs [B, K] (Dosovitskiy et al. 2020), or with pool="patches" and a
    linear head to outputs of every patch [B, N, K], or with `upsample` of its parts too (`model.class_maps`).

    `visible` holds for each image the indices of the patches that the encoder reads, in reading order from 0; None
    means all. The others have no influence: patch dropout trains faster, and deletion tests remove evidence. With soft
    splits they have some, because every patch is mixed with its neighbours before any is dropped. An image of another
    size than the configuration's has its own grid.

    Args:
        seed: of the initial values, drawn by `config.init`: the same on every device, whatever torch's global generator
            has done, which is left as it was. Within `torch.device("meta")` nothing is allocated or drawn.

    Raises:
        UsageError: a side of the images is not a multiple of the patch and the model does not pad, or they have another
            number of channels.
    """

    @check_calls
    def __init__(self, config: ViTConfig, seed: int = 0):
        super().__init__()
        if not abs(seed) < MAX_NUMBER:
            raise UsageError(f"seed must be a whole number{BELOW_MAX_NUMBER}. Got {seed}.")
        self.config = config
        self.pool_span = config.pool_span
        device = torch.get_default_device()
        with torch.device("meta"):  # torch's layers would draw values of their own, which nothing here needs
            self.tokens = TokenEmbedding(config)
            self.positions = Positions(config)
            self.rotary = Rotary(config)
            self.encoder = Encoder(config)
            self.pool = Pooling(config)
            self.head = Head(config)
        self.tiling = Tiling(config) if config.is_tiled else None
        if device.type != "meta":
            self.to_empty(device="cpu")
            with torch.device("cpu"):
                initialise(self, config, torch.Generator().manual_seed(seed))
            self.to(device)

    def __repr__(self) -> str:
        parameters = {name: parameter.numel() for name, parameter in self.named_parameters()}
        return format_parts(type(self).__name__, self.config, list_parts(self.config, parameters))

    def forward(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B *N K"]:
        if self.head.queries is None:
            return self.head(self.pooled(images, visible))
        if self.tiling is not None:
            return self.tiling.join(self.tiling.map_tiles(self._answer_with_queries, images))
        return self._answer_with_queries(images, visible)

    def _answer_with_queries(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B N M"]:
        assert self.head.queries is not None
        x, places = self.embed(images, visible)
        x, queries = self.encoder.forward_with_queries(x, places, self.pool_span, self.head.queries.queries)
        pooled = self.pool(x)
        return torch.cat([self.head(pooled), self.head.queries(queries, pooled[..., -self.config.width :])], dim=-1)

    def pooled(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B *N P"]:
        """What the head reads: features of each image, or of each of its patches."""
        if self.tiling is not None:
            return self.tiling.join(self.tiling.map_tiles(self._pool_whole, images))
        return self._pool_whole(images, visible)

    def _pool_whole(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B *N P"]:
        x, places = self.embed(images, visible)
        pooled: Tensor = self.pool(self.encoder(x, places, self.pool_span, self.pool.pool_tokens))
        return pooled

    def embed(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], TokenPositions]:
        """Tokens with their positions added, and the positions that attention needs."""
        x, grid = self.tokens(images, visible)  # [B, T, D], (rows, columns)
        x = self.positions(x, grid, visible)
        return x, TokenPositions(grid, visible, self.rotary(grid, x, visible))

    def features(
        self,
        images: Float[Tensor, "B C H W"],
        keep: Sequence[str] = ("tokens",),
        heads: Sequence[int] | None = None,
        rows: Sequence[int] | None = None,
        visible: Int[Tensor, "B n"] | None = None,
    ) -> dict[str, Tensor]:
        """Named intermediates of a forward pass, through which gradients flow; it ends with the last one.

        Args:
            keep: any of `feature_names(model)`: "embedded" [B, T, D], the input of the first block; "blocks.I"
                [B, T, D], the output of block I; "blocks.I.attention" [B, A, T, T], its weights; "tokens" [B, T, D],
                after the final norm; "pool.attention" [B, A, 1, T], of a learned probe where there is one; "pooled"
                [B, P], or [B, N, P] with pool="patches"; "distances" [B, rows, columns] of patches from a bank where
                there is one; "outputs" [B, K].
            heads, rows: of the blocks' attention weights, only these heads and these query tokens (0 is the first
                prefix token).
            visible: as in `ViT`; rows then count the tokens that are left.

        Raises:
            UsageError: a name, head or row that the model does not have.
        """
        if not _is_list(keep, object):
            raise UsageError(f"keep must be a list of names. Got {keep!r}. Write it as a list.")
        keep = tuple(keep)
        _check_selection(self, keep, heads, rows)
        if self.tiling is not None:
            last_kept = self._keep_pooled(self.pooled(images), self.config.input_grid, keep)
            if self.head.queries is not None and "outputs" in keep:
                last_kept["outputs"] = self(images)
            return {name: last_kept[name] for name in keep}
        x, places = self.embed(images, visible)
        if wrong := [row for row in rows or () if not 0 <= row < x.shape[1]]:
            raise UsageError(f"The pictures make tokens 0 to {x.shape[1] - 1}. Got rows={', '.join(map(str, wrong))}.")
        x = self.encoder.prepare_tokens(x)
        kept, last = {"embedded": x} if "embedded" in keep else {}, [x]
        for i in range(_count_blocks(self, keep)):
            block = self.encoder.blocks[i]
            if f"blocks.{i}.attention" in keep:
                assert isinstance(block, Block)
                x, kept[f"blocks.{i}.attention"] = block.forward_with_attention(x, places, heads, rows)
            else:
                is_last = i + 1 == self.config.depth
                x = self.encoder.run_block(block, x, places, _num_queries(self, keep) if is_last else None)
            last = [*last, x][-self.pool_span :]
            if f"blocks.{i}" in keep:
                kept[f"blocks.{i}"] = x
        if any(name in keep for name in _AFTER_BLOCKS):
            x = self.encoder.apply_final_norm(last)
            kept["tokens"] = x[..., -self.config.width :]
        if "pool.attention" in keep:
            x, kept["pool.attention"] = self.pool.forward_with_attention(x)
        elif any(name in keep for name in ("pooled", "distances", "outputs")):
            x = self.pool(x)
        kept |= self._keep_pooled(x, places.grid, keep)
        if self.head.queries is not None and "outputs" in keep:
            kept["outputs"] = self(images, visible)
        return {name: kept[name] for name in keep}

    def _keep_pooled(self, x: Float[Tensor, "B *N P"], grid: Grid, keep: Collection[str]) -> dict[str, Tensor]:
        """The last intermediates, from the pooled features."""
        kept = {"pooled": x}
        if "distances" in keep:
            assert self.head.bank is not None
            distances = self.head.bank.distances(x)  # [B, N]
            kept["distances"], kept["outputs"] = distances.unflatten(1, grid), self.head.bank.score(distances)
        elif "outputs" in keep:
            kept["outputs"] = self.head(x)
        return kept

    def dense(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Patch tokens after the final norm, laid out as the grid of patches: [B, D, rows, columns]."""
        x, places = self.embed(images)
        x = self.encoder(x, places)[:, self.config.prefix :]  # [B, N, D]
        return x.transpose(1, 2).unflatten(-1, tuple(places.grid))


def create_model(config: ViTConfig, seed: int = 0) -> ViT:
    """A model with fresh initial values; see `ViT`."""
    return ViT(config, seed)


def parameter_count(config: ViTConfig, include_buffers: bool = False) -> int:
    """Number of trainable values; with `include_buffers` also the fixed ones. Nothing is allocated."""
    with torch.device("meta"):
        model = ViT(config)
    buffers = model.buffers() if include_buffers else ()
    return sum(tensor.numel() for tensor in (*model.parameters(), *buffers))


# The encoder: blocks of attention and MLP around a residual stream, and the norms before and after them.


class Encoder(nn.Module):
    """Dropout on the embeddings, the blocks, and norms before and after them where configured."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grad_checkpointing = config.grad_checkpointing
        self.pool_every, self.query_blocks = config.pool_every, config.query_blocks
        self.dropout = nn.Dropout(config.dropout)
        self.pre_norm = make_norm(config) if config.pre_norm else nn.Identity()
        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(Block(config, config.drop_path * i / last) for i in range(config.depth))
        self.norm = make_norm(config) if config.final_norm else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        token_positions: TokenPositions,
        pool_span: int = 1,
        num_queries: int | None = None,
    ) -> Float[Tensor, "B r P"]:
        """The tokens after each `pool_every`-th of the last `pool_span` blocks, through the final norm and side by
        side.

        Args:
            num_queries: return only so many of the first tokens; with `pool_span` 1 the last block computes no others.
        """
        x = self.prepare_tokens(x)
        last = [x]
        for i, block in enumerate(self.blocks):
            alone = pool_span == 1 and i == len(self.blocks) - 1
            x = self.run_block(block, x, token_positions, num_queries if alone else None)
            last = [*last, x][-pool_span:]
        return self.apply_final_norm([x[:, :num_queries] for x in last])

    def forward_with_queries(
        self,
        x: Float[Tensor, "B T D"],
        token_positions: TokenPositions,
        pool_span: int,
        queries: Float[Tensor, "1 Q D"],
    ) -> tuple[Float[Tensor, "B T P"], Float[Tensor, "B Q D"]]:
        """What `forward` gives of all tokens, and queries after the last `query_blocks` blocks, in each of which they
        attend to themselves and to the tokens before it; the tokens do not attend to them.
        """
        x = self.prepare_tokens(x)
        last, queries = [x], queries.expand(x.shape[0], -1, -1)
        for i, block in enumerate(self.blocks):
            if i >= len(self.blocks) - self.query_blocks:
                queries = self.run_block(block, torch.cat([queries, x], dim=1), token_positions, queries.shape[1])
            x = self.run_block(block, x, token_positions)
            last = [*last, x][-pool_span:]
        return self.apply_final_norm(last), self.norm(queries)

    def apply_final_norm(self, block_outputs: Sequence[Float[Tensor, "B T D"]]) -> Float[Tensor, "B T P"]:
        """The tokens after every `pool_every`-th of the last blocks, normalised and side by side."""
        tokens = [self.norm(x) for x in block_outputs[:: self.pool_every]]
        return tokens[0] if len(tokens) == 1 else torch.cat(tokens, dim=-1)

    def prepare_tokens(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The input of the first block."""
        return self.pre_norm(self.dropout(x))

    def run_block(
        self,
        block: nn.Module,
        x: Float[Tensor, "B T D"],
        token_positions: TokenPositions,
        num_queries: int | None = None,
    ) -> Float[Tensor, "B r D"]:
        """One block, with gradient checkpointing if configured."""
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, token_positions, num_queries, use_reentrant=False)
        return block(x, token_positions, num_queries)


class Block(nn.Module):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)); both at once, from one norm (`parallel`); or with
    the norms behind the branches, x + norm(attention(x)), then x + norm(mlp(x)) (`post_norm`).

    With `num_queries` it returns only the first r tokens, which attend to all. Where only the class token is pooled,
    that saves three quarters of the work of the last block.
    """

    def __init__(self, config: ViTConfig, drop_path: float):
        super().__init__()
        self.post_norm = config.post_norm
        self.norm1 = make_norm(config)
        self.attention = Attention(config)
        self.scale1 = _make_layer_scale(config)
        self.norm2 = None if config.parallel else make_norm(config)
        self.mlp = make_mlp(config)
        self.scale2 = _make_layer_scale(config)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Float[Tensor, "B T D"], token_positions: TokenPositions, num_queries: int | None = None
    ) -> Float[Tensor, "B r D"]:
        normal = self.prepare_attention(x)
        return self._add_branches(
            x[:, :num_queries], normal[:, :num_queries], self.attention(normal, token_positions, num_queries)
        )

    def prepare_attention(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The input of the attention: the tokens through the first norm, or with `post_norm` the tokens themselves."""
        return x if self.post_norm else self.norm1(x)

    def forward_from_norm(
        self, x: Float[Tensor, "B T D"], normal: Float[Tensor, "B T D"], token_positions: TokenPositions
    ) -> Float[Tensor, "B T D"]:
        """The same, from the input of the attention, see `prepare_attention`."""
        return self._add_branches(x, normal, self.attention(normal, token_positions))

    def forward_with_attention(
        self,
        x: Float[Tensor, "B T D"],
        token_positions: TokenPositions,
        heads: Sequence[int] | None,
        rows: Sequence[int] | None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B a r T"]]:
        """The same output, and the attention weights of the chosen heads and rows."""
        normal = self.prepare_attention(x)
        attended, weights = self.attention.forward_with_attention(normal, token_positions, heads, rows)
        return self._add_branches(x, normal, attended), weights

    def _add_branches(
        self, x: Float[Tensor, "B r D"], normal: Float[Tensor, "B r D"], attended: Float[Tensor, "B r D"]
    ) -> Float[Tensor, "B r D"]:
        if self.post_norm:
            assert self.norm2 is not None
            x = x + self.drop_path(_apply_layer_scale(self.norm1(attended), self.scale1))
            return x + self.drop_path(_apply_layer_scale(self.norm2(self.mlp(x)), self.scale2))
        x = x + self.drop_path(_apply_layer_scale(attended, self.scale1))
        normal = normal if self.norm2 is None else self.norm2(x)
        return x + self.drop_path(_apply_layer_scale(self.mlp(normal), self.scale2))


class DropPath(nn.Module):
    """Stochastic depth: in training an image skips the branch with probability `rate`, the others are scaled up.

    Source: Huang et al. 2016; per image as in Touvron et al. 2021.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        return x * (x.new_empty(len(x), 1, 1).bernoulli_(keep) / keep)


def _make_layer_scale(config: ViTConfig) -> nn.Parameter | None:
    return None if config.layer_scale is None else nn.Parameter(torch.empty(config.width))


def _apply_layer_scale(x: Float[Tensor, "B T D"], scale: Float[Tensor, " D"] | None) -> Float[Tensor, "B T D"]:
    return x if scale is None else x * scale


# From tokens to outputs: pooling to one vector per image, and the head.


class Pooling(nn.Module):
    """The class token, the mean of the patch tokens or of all, class token and mean side by side, attention pooling
    with a learned probe, or the patch tokens as they are.

    With a distillation head: the class token and the distillation token side by side. Tokens are those of `pool_blocks`
    blocks side by side, so D is `pool_blocks` times the width.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = "class+distillation" if config.distillation_head else config.pool
        self.prefix = 0 if config.pool == "mean-all" else config.prefix
        self.pool_tokens = config.pool_tokens
        self.attention = ProbePooling(config) if config.pool == "attention" else None
        self.norm = make_norm(config, config.pooled_width) if config.pooled_norm else None

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B *N P"]:
        return self._apply_norm(self._pool(x))

    def forward_with_attention(
        self, x: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B A 1 T"]]:
        """The same from a learned probe, and its attention weights, through which gradients flow."""
        assert self.attention is not None
        pooled, weights = self.attention.forward_with_attention(x)
        return self._apply_norm(pooled), weights

    def _apply_norm(self, x: Float[Tensor, "B *N P"]) -> Float[Tensor, "B *N P"]:
        return x if self.norm is None else self.norm(x)

    def _pool(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B *N P"]:
        if self.attention is not None:
            return self.attention(x)
        if self.kind == "class":
            return x[:, 0]
        if self.kind == "class+distillation":
            return x[:, :2].flatten(1)
        if self.kind == "patches":
            return x[:, self.prefix :]
        mean = x[:, self.prefix :].mean(dim=1)
        return torch.cat([x[:, 0], mean], dim=1) if self.kind == "class+mean" else mean


class ProbePooling(nn.Module):
    """One learned query attends to every token; a residual MLP follows (Zhai et al. 2022, section 3.1)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.heads = config.probe_heads
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.q = nn.Linear(config.width, config.width)
        self.kv = nn.Linear(config.width, 2 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm = make_norm(config)
        self.mlp = PoolMLP(config)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        q, k, v = self._project_heads(x)
        return self._project_out(F.scaled_dot_product_attention(q, k, v))

    def forward_with_attention(
        self, x: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B A 1 T"]]:
        """The same, and the attention weights of the probe, for each head."""
        q, k, v = self._project_heads(x)
        weights = attention_weights(q, k, q.shape[-1] ** -0.5)
        return self._project_out(weights @ v), weights

    def _project_heads(self, x: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor, Tensor]:
        probe = self.probe.expand(x.shape[0], -1, -1)
        q = self.q(probe).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, A, 1, d]
        k, v = self.kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # 2 x [B, A, T, d]
        return q, k, v

    def _project_out(self, y: Float[Tensor, "B A 1 d"]) -> Float[Tensor, "B D"]:
        y = self.out(y.transpose(1, 2).flatten(2))  # [B, 1, D]
        return (y + self.mlp(self.norm(y)))[:, 0]


class PoolMLP(nn.Module):
    """Two matrices with the model's activation between."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.probe_mlp_width)
        self.activation = ACTIVATIONS[config.activation]()
        self.fc2 = nn.Linear(config.probe_mlp_width, config.width)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.fc2(self.activation(self.fc1(x)))


class Head(nn.Module):
    """One matrix, or (`tanh`) a hidden layer of the same width before it, or a bank of patches; no outputs means
    features pass through.

    With a distillation head the outputs are the mean of two heads, one on each token; without outputs, of both tokens.
    Queries, where there are some, are called by the model, because they go through the last blocks.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        width = config.pooled_width
        self.has_distillation_head = config.distillation_head
        self.hidden = nn.Linear(width, width) if config.head == "tanh" else None
        self.bank = PatchBank(config) if config.head == "bank" else None
        is_linear = config.outputs > 0 and self.bank is None
        self.linear = nn.Linear(width, config.linear_outputs, bias=config.head_bias) if is_linear else None
        self.queries = MaskQueries(config) if config.queries else None
        both = config.distillation_head and config.outputs
        self.distillation = nn.Linear(width, config.outputs, bias=config.head_bias) if both else None

    def forward(self, x: Float[Tensor, "B *N P"]) -> Float[Tensor, "B *M K"]:
        if self.bank is not None:
            return self.bank(x)
        if self.has_distillation_head:
            class_token, distillation_token = x.chunk(2, dim=-1)
            outputs = self._project(class_token, self.linear)
            return (outputs + self._project(distillation_token, self.distillation)) / 2
        return self._project(x, self.linear)

    def _project(self, x: Float[Tensor, "B *N D"], matrix: nn.Module | None) -> Float[Tensor, "B *N K"]:
        x = x if self.hidden is None else torch.tanh(self.hidden(x))
        return x if matrix is None else matrix(x)


# Names of the intermediates that `ViT.features` returns, and checks of a selection.


def feature_names(model: ViT) -> tuple[str, ...]:
    """Every name that `ViT.features` knows, in the order of the forward pass; of tiles only what the head reads."""
    if model.tiling is not None:
        return "pooled", "distances", "outputs"
    blocks = (f"blocks.{i}{part}" for i in range(model.config.depth) for part in (".attention", ""))
    optional = {"pool.attention": model.config.pool == "attention", "distances": model.config.head == "bank"}
    return ("embedded", *blocks, *(name for name in _AFTER_BLOCKS if optional.get(name, True)))


_AFTER_BLOCKS = ("tokens", "pool.attention", "pooled", "distances", "outputs")


def _count_blocks(model: ViT, keep: Sequence[str]) -> int:
    if any(name in keep for name in _AFTER_BLOCKS):
        return model.config.depth
    return max((int(name.split(".")[1]) + 1 for name in keep if name.startswith("blocks.")), default=0)


def _num_queries(model: ViT, keep: Sequence[str]) -> int | None:
    """How many tokens the last block computes: as in the plain forward, unless `keep` needs the others."""
    last = model.config.depth - 1
    whole = model.config.pool_blocks > 1 or any(name in keep for name in ("tokens", f"blocks.{last}"))
    return None if whole else model.pool.pool_tokens


def _is_list(value: object, kind: type) -> bool:
    """Whether a value is a list, tuple or array of such values; a text is none."""
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(one, kind) for one in value)


def _check_selection(model: ViT, keep: Sequence[str], heads: Sequence[int] | None, rows: Sequence[int] | None) -> None:
    for name, chosen in (("heads", heads), ("rows", rows)):
        if chosen is not None and not _is_list(chosen, numbers.Integral):
            raise UsageError(f"{name} must be a list of whole numbers. Got {chosen!r}.")
    known = feature_names(model)
    if unknown := [name for name in keep if name not in known]:
        shown = ", ".join(known[:3] + ("...",) * (len(known) > 8) + known[-5:] if len(known) > 8 else known)
        raise UsageError(
            f"There are no features called {', '.join(map(repr, unknown))}. Known: {shown}. Patch tokens as a grid are "
            "given by dense(images)."
        )
    if wrong := [head for head in heads or () if not 0 <= head < model.config.heads]:
        raise UsageError(f"The model has heads 0 to {model.config.heads - 1}. Got {', '.join(map(str, wrong))}.")

    for name, chosen in (("heads", heads), ("rows", rows)):
        if chosen is not None and (len(chosen) == 0 or len(set(chosen)) < len(chosen)):
            raise UsageError(f"{name} must list numbers, each once; leave {name} out for all. Got {list(chosen)}.")
        if chosen is not None and not any(kept.startswith("blocks.") and kept.endswith(".attention") for kept in keep):
            raise UsageError(
                f"{name} chooses among attention weights, and keep asks for none. Add blocks.0.attention to keep, "
                f"or leave {name} out."
            )
