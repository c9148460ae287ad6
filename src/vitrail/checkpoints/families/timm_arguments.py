"""Arguments of timm's classes in a config.json: those that are read, and those that change no output.

timm writes every argument that a model was made with. One that is in neither list makes another function of the same
tensors, so that a file with it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UsageError

_READ = (
    # of the pictures and the head
    "img_size patch_size in_chans num_classes global_pool pool_include_prefix dynamic_img_pad dynamic_img_size "
    # of tokens and positions
    "class_token reg_tokens num_reg_tokens no_embed_class pos_embed pos_embed_grid_size pos_embed_interp_mode "
    "pos_embed_ar_preserving pos_embed_antialias embed_norm_layer use_abs_pos_emb use_rot_pos_emb rope_type "
    "rope_temperature rope_grid_offset rope_grid_indexing rope_rotate_half ref_feat_shape use_rel_pos_bias "
    "use_shared_rel_pos_bias "
    # of the blocks
    "embed_dim depth num_heads num_kv_heads mlp_ratio qkv_bias qkv_fused qk_norm proj_bias init_values act_layer "
    "norm_layer swiglu_mlp swiglu_align_to scale_mlp scale_mlp_norm scale_attn_inner scale_attn_norm attn_type "
    "attn_only_layer_scale use_post_norm "
    # of the end
    "pre_norm final_norm fc_norm use_pre_transformer_norm use_post_transformer_norm use_fc_norm "
    "attn_pool_num_heads attn_pool_mlp_ratio"
)
_OF_TRAINING = (
    "weight_init fix_init head_init_scale rope_shift_coords rope_jitter_coords rope_rescale_coords strict_img_size "
    "device dtype use_naflex"
)
READ_ARGUMENTS = frozenset(_READ.split())
"""Arguments that the reader looks at, or that the tensors show."""
TRAINING_ARGUMENTS = frozenset(_OF_TRAINING.split())
"""Arguments without an effect on outputs in evaluation mode; also every rate of dropping."""
USUAL_VALUES_OF_OTHERS = {"patchify_channels_last": True, "embed_proj_type": "linear"}
"""Arguments that are not read -> their default; of all others it is None, False or ""."""


def refuse_unknown_arguments(foreign: Mapping[str, Any]) -> None:
    """Refuse a config.json of timm with an argument that Vitrail does not know.

    Raises:
        UsageError: names the argument and its value.
    """
    arguments = foreign.get("model_args")
    for name, value in arguments.items() if isinstance(arguments, Mapping) else ():
        usual = (USUAL_VALUES_OF_OTHERS[name],) if name in USUAL_VALUES_OF_OTHERS else (None, False, "")
        known = name in READ_ARGUMENTS or name in TRAINING_ARGUMENTS or name.endswith("drop_rate")
        if not known and value not in usual:
            raise UsageError(
                f"config.json says {str(name)[:80]}={str(value)[:80]}, an argument of timm's that is not known "
                "here and makes another model: only timm can run it."
            )
