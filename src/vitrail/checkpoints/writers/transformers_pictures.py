"""preprocessor_config.json of transformers that prepares pictures as an `ImageSpec` does."""

from __future__ import annotations

from typing import Any

from ...errors import UsageError
from ...spec import ImageSpec
from ..preprocessor import preprocessor


def processor(spec: ImageSpec) -> dict[str, Any]:
    """The content of the file.

    squash is a resize to both sides, then the centre if only a fraction is kept; crop a resize of the short side, then
    the centre; pad a resize to what fits, then the centre of something larger, which transformers fills with black; it
    rounds the inner size down and we to the nearest, so that a row of pixels may differ. Stored ranges other than
    0..255 are a matter of decoding and stand in no processor.

    Raises:
        UsageError: a crop that is not square, which transformers cannot say.
    """
    height, width = spec.size
    content = preprocessor(spec)
    del content["do_pad"]
    if spec.fit == "squash" and spec.crop_fraction < 1:
        content["image_processor_type"] = "DeiTImageProcessor"  # ViT's own cuts nothing out before version 5
    elif spec.fit == "squash":
        del content["crop_size"]
    elif spec.fit == "pad":
        content |= {"size": {"max_height": height, "max_width": width}, "do_center_crop": True}
    elif height != width:
        raise UsageError(
            f"transformers' processors cannot cut {height}x{width} out of the middle: they resize the short side to "
            'one number first. Train with fit="squash" or fit="pad", or save the model as a bundle.'
        )
    else:
        content["image_processor_type"] = "CLIPImageProcessor"  # also before version 5 it resizes the short side
    return {**content, "do_convert_rgb": spec.channels == 3}
