"""The names that a pickle of weights may hold: what builds tensors, and what published files keep beside them.

Everything else is refused by name. The second list builds nothing either: such values are read past, as inert ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

_NUMBERS = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
STORAGES: Mapping[str, torch.dtype] = {
    **{f"torch.{word}Storage": dtype for word, dtype in _NUMBERS.items()},
    **{f"torch.cuda.{word}Storage": dtype for word, dtype in _NUMBERS.items()},
    "torch.storage.UntypedStorage": torch.uint8,
}
"""Kinds of storages, and the number format of each."""
DTYPES: Mapping[str, torch.dtype] = {
    str(dtype): dtype
    for dtype in (
        *_NUMBERS.values(),
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
    )
}
"""Number formats by the names that pickles give them."""

TENSORS = frozenset(
    {
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state",
        "torch._tensor._rebuild_from_type_v2",
        "torch.Tensor",
        "torch.nn.parameter.Parameter",
        "torch.Size",
        "torch.device",
        "collections.OrderedDict",
        "collections.defaultdict",
        "collections.Counter",
    }
)
"""What state dicts are made of."""

_BUILT_IN = (
    *("bytearray", "complex", "dict", "float", "frozenset", "int", "list", "long", "object", "range", "set"),
    *("slice", "str", "tuple"),
)
_BESIDE: Mapping[str, tuple[str, ...]] = {
    "__builtin__": _BUILT_IN,
    "builtins": _BUILT_IN,
    "_codecs": ("encode",),
    "copy_reg": ("_reconstructor",),
    "copyreg": ("_reconstructor",),
    "argparse": ("Namespace",),
    "types": ("SimpleNamespace",),
    "typing": ("Any",),
    "collections": ("deque",),
    "datetime": ("date", "datetime", "timedelta", "timezone"),
    "pathlib": ("Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath"),
    "pathlib._local": ("Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath"),
    "numpy": ("dtype", "ndarray"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy.core.numeric": ("_frombuffer",),
    "numpy._core.numeric": ("_frombuffer",),
    "numpy.dtypes": ("Float32DType", "Float64DType", "Int64DType"),
    "omegaconf.base": ("ContainerMetadata", "Metadata"),
    "omegaconf.dictconfig": ("DictConfig",),
    "omegaconf.listconfig": ("ListConfig",),
    "omegaconf.nodes": ("AnyNode", "BooleanNode", "FloatNode", "IntegerNode", "StringNode"),
    "easydict": ("EasyDict",),
    "yacs.config": ("CfgNode",),
    "fvcore.common.config": ("CfgNode",),
    "ml_collections.config_dict.config_dict": ("ConfigDict",),
    "lightning_fabric.utilities.data": ("AttributeDict",),
    "lightning.fabric.utilities.data": ("AttributeDict",),
    "pytorch_lightning.utilities.parsing": ("AttributeDict",),
    "pytorch_lightning.callbacks.model_checkpoint": ("ModelCheckpoint",),
    "mmengine.logging.history_buffer": ("HistoryBuffer",),
}
HARMLESS = frozenset(f"{module}.{name}" for module, names in _BESIDE.items() for name in names)
"""What published files keep beside their tensors: the arguments of a training, its scores, paths and dates."""
SCRIPTED = frozenset(
    {
        "torch.jit._pickle.build_intlist",
        "torch.jit._pickle.build_tensorlist",
        "torch.jit._pickle.build_doublelist",
        "torch.jit._pickle.build_boollist",
        "torch.jit._pickle.restore_type_tag",
    }
)
"""Lists with a type, in TorchScript archives; the modules there are called `__torch__` and so on."""


def refused(names: Mapping[str, None], is_scripted: bool) -> list[str]:
    """The names among those met that no file of weights needs, sorted, safe to print."""
    allowed = {*STORAGES, *DTYPES, *TENSORS, *HARMLESS, *(SCRIPTED if is_scripted else ())}
    left = {name for name in names if name not in allowed and not (is_scripted and name.startswith("__torch__."))}
    return sorted(name[:100] if name.isprintable() else ascii(name)[:100] for name in left)
