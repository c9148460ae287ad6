"""Check a weights file: infer sizes from shapes, compare names and shapes, limit model size, report every tensor."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isqrt
from typing import Literal, TypeVar

import torch
from torch import Tensor

from ..errors import DamagedFileError, UsageError
from ..formatting import format_count
from ..model.config import ViTConfig, describe_oversize
from .layouts import LayoutHints

ArgumentValue = TypeVar("ArgumentValue")
MAX_BLOCKS = 256
"""Blocks of the largest model that is read; the largest published plain ViT has 64."""
MAX_SHOWN = 4
"""Names that a message lists before it only counts."""
MAX_COMPARED, MAX_COMPARED_LETTERS = 1_000, 100
"""Limits of the search for the nearest name: names, and letters of a name. Its cost grows with their product."""
_BLOCK_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|(?<=encoderblock_)\d+(?=/)|(?<=encoder_layer_)\d+(?=\.)")
_ADVICE = "Use another copy of the file."


def require_tensor(tensors: Mapping[str, Tensor], name: str, axes: int) -> Tensor:
    """The tensor of that name, which must have this number of axes.

    Raises:
        DamagedFileError: it is missing (with the nearest name of the file), or has another number of axes.
        UsageError: it is a kernel over time.
    """
    if name not in tensors:
        raise DamagedFileError(
            f"The file has no tensor {name}{nearest_name_hint(name, tensors)}, which tells the architecture."
        )
    if axes == 4 and tensors[name].ndim == 5:
        raise UsageError(
            f"{name} has 5 axes, {list(tensors[name].shape)}: its patches reach over several pictures of a video, and "
            "a plain Vision Transformer reads one picture."
        )
    if tensors[name].ndim != axes:
        raise DamagedFileError(f"{name} must have {axes} axes. Got the shape {list(tensors[name].shape)}.")
    return tensors[name]


def compile_pattern(name: str) -> re.Pattern[str]:
    """The regular expression for a name in a table: `{i}` matches any block, `{p}` weight or bias."""
    return re.compile(re.escape(name).replace(r"\{i\}", r"\d+").replace(r"\{p\}", "(weight|bias)"))


def zero_block_number(name: str) -> str:
    """A name with the number of its block as 0, so that the same tensors of all blocks have one name."""
    return _BLOCK_NUMBER.sub("0", name, count=1)


def has_tensor(tensors: Collection[str], *patterns: str) -> bool:
    """Whether a name matches one of the patterns: `{i}` matches any block, `{p}` weight or bias."""
    compiled = [compile_pattern(pattern) for pattern in patterns]
    return any(pattern.fullmatch(name) for name in tensors for pattern in compiled)


def count_blocks(tensors: Mapping[str, Tensor], prefix: str) -> int:
    """The number of blocks: one more than the highest number after `prefix`, at most MAX_BLOCKS."""
    matches = [re.match(re.escape(prefix) + r"\.(\d+)\.", name) for name in tensors]
    numbers = [match[1] for match in matches if match]
    for number in numbers:
        if len(number) > 3 or int(number) >= MAX_BLOCKS:
            raise DamagedFileError(
                f"A file may have at most {MAX_BLOCKS} blocks, {prefix}.0 to {prefix}.{MAX_BLOCKS - 1}. It names "
                f"{prefix}.{number[:20]}{'...' if len(number) > 20 else ''}; use another copy of it."
            )
    return 1 + max(map(int, numbers), default=-1)


def majority_length(tensors: Mapping[str, Tensor], what: str, *sources: tuple[str, int]) -> int:
    """The most frequent length among the sources, (name, axis); `{i}` stands for every block.

    A majority of tensors decides, so that a single damaged tensor is later reported as the one that does not fit.

    Raises:
        DamagedFileError: none of the sources is in the file, or two lengths are equally frequent.
    """
    lengths: dict[str, int] = {}
    for pattern, axis in sources:
        matching = compile_pattern(pattern)
        for name, tensor in tensors.items():
            if matching.fullmatch(name) and -tensor.ndim <= axis < tensor.ndim:
                lengths[name] = tensor.shape[axis]
    counts = Counter(lengths.values()).most_common(2)
    if not counts:
        first = sources[0][0].format(i=0, p="weight")
        raise DamagedFileError(
            f"The file has no tensor {first}{nearest_name_hint(first, tensors)}, which tells the {what}."
        )
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        votes = ", ".join(f"{name[:80]} says {length}" for name, length in list(lengths.items())[:8])
        raise DamagedFileError(f"The tensors of the file disagree about the {what}: {votes}.")
    return counts[0][0]


def count_outputs(tensors: Mapping[str, Tensor], *patterns: str) -> int:
    """Rows of the head under these names; 0 if the file has none."""
    if not has_tensor(tensors, *patterns):
        return 0
    return majority_length(tensors, "number of outputs", *((pattern, 0) for pattern in patterns))


def require_argument(value: ArgumentValue | None, name: str, layout: str, hint: str) -> ArgumentValue:
    """The value of an argument that the file cannot give; UsageError where it was not given."""
    if value is None:
        raise UsageError(f"A file of the layout {layout} does not say {name}. Pass {name}=; {hint}.")
    return value


def choose_heads(hints: LayoutHints, width: int, published: Mapping[int, int], layout: str) -> int:
    """Heads from the caller, else those of the published size of that width.

    Args:
        published: heads by width.

    Raises:
        UsageError: neither gives them.
    """
    heads = published.get(width) if hints.heads is None else hints.heads
    sizes = ", ".join(f"{width} wide {count}" for width, count in published.items())
    return require_argument(heads, "heads", layout, f"published sizes have: {sizes}")


def reconcile(value: ArgumentValue | None, file_value: ArgumentValue, name: str, source: str) -> ArgumentValue:
    """The file's value, if the caller gives none or the same; UsageError where they differ."""
    if value is not None and value != file_value:
        raise UsageError(f"{name}={value} contradicts the file: {source} says {file_value}. Leave {name}= out.")
    return file_value


def is_square(count: int) -> bool:
    """Whether a number of patches fills a square."""
    return count > 0 and isqrt(count) ** 2 == count


def find_square_side(counts: tuple[int, ...], source: str) -> int:
    """The side of the square that one of the counts of patches fills.

    Raises:
        UsageError: none is a square number, so image_size must be given.
    """
    if square := next(filter(is_square, counts), None):
        return isqrt(square)
    raise UsageError(
        f"{source} has rows for {' or '.join(map(str, counts))} patches, which fill no square. "
        "Pass image_size=(height, width)."
    )


def infer_image_size(patches: int, patch: tuple[int, int], hints: LayoutHints, source: str) -> tuple[int, int]:
    """The image size of a position table for this number of patches.

    The caller's size, in `settings` or `image_size`, is taken if it has that many patches. Else the patches fill a
    square, and `image_size` is reached afterwards by resampling.

    Args:
        source: the table's name, for messages.

    Raises:
        UsageError: the count fills neither a square nor a given size.
    """
    own_size = hints.settings.get("image_size")
    if own_size is not None and count_patches(own_size, patch) != patches:
        raise UsageError(
            f"image_size={own_size} contradicts the file: it makes {count_patches(own_size, patch)} patches of "
            f"{patch[0]}x{patch[1]}, and {source} has rows for {patches}."
        )
    for size in (own_size, hints.image_size):
        if size is not None and count_patches(size, patch) == patches:
            return size[0], size[1]
    side = find_square_side((patches,), source)
    return side * patch[0], side * patch[1]


def count_patches(size: tuple[int, int], patch: tuple[int, int]) -> int:
    """Whole patches in an image of this size."""
    return (size[0] // patch[0]) * (size[1] // patch[1])


# -- Complete and finite


def check_complete(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Sequence[int] | None],
    layout: str,
    where: str,
) -> None:
    """Check that a file has exactly the expected names and shapes; None stands for any shape.

    Raises:
        DamagedFileError: lists every kind of difference, the first tensors of each, and the nearest known name.
        UsageError: the same, where all blocks alike have other tensors.
    """
    extra = [name for name in tensors if name not in expected]
    missing: list[str] = []
    reshaped: list[str] = []
    for name, shape in expected.items():
        if name not in tensors:
            near = nearest_name_hint(name, extra) if len(missing) < MAX_SHOWN else ""
            missing.append(name + ("" if shape is None else f" {list(shape)}") + near)
        elif shape is not None and tuple(tensors[name].shape) != tuple(shape):
            reshaped.append(f"{name} is {list(tensors[name].shape)}, expected {list(shape)}")
    unknown = [f"{name} {list(tensors[name].shape)}" for name in extra]
    faults = []
    for kind, names in (("missing", missing), ("without a rule", unknown), ("of another shape", reshaped)):
        more = f", and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
        if names:
            faults.append(f"{len(names)} {kind}: {', '.join(names[:MAX_SHOWN])}{more}")
    if not faults:
        return
    differences = f"{where} does not fit the layout {layout}: {'; '.join(faults)}."
    if not reshaped and _is_another_design(tensors, expected):
        raise UsageError(f"{differences} It is the same in every block: the model has other parts than Vitrail reads.")
    raise DamagedFileError(f"{differences} Give the tensors their names and shapes back, or name another layout.")


def _is_another_design(tensors: Collection[str], expected: Collection[str]) -> bool:
    """Whether names that a file has too many or too few are those of every one of several blocks."""
    ours, theirs = (Counter(map(zero_block_number, names)) for names in (expected, tensors))
    depth = max(ours.values())
    differing = [(ours[name], theirs[name]) for name in {*ours, *theirs} if ours[name] != theirs[name]]
    return depth > 1 and all(min(counts) == 0 and max(counts) % depth == 0 for counts in differing)


def check_finite(tensors: Mapping[str, Tensor], where: str, allow_nonfinite: bool = False) -> tuple[str, ...]:
    """Refuse tensors that are not floating-point, or hold NaN or infinity; the latter are only noted if allowed.

    Returns:
        One note for each tensor with NaN or infinity.

    Raises:
        DamagedFileError: names the tensor and counts its bad numbers.
    """
    notes = []
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise DamagedFileError(f"{where}: {name} must hold floating-point numbers. Got {dtype}.")
        known = tensor if tensor.dtype in (torch.float32, torch.float16, torch.bfloat16) else tensor.float()
        if bad := int((~torch.isfinite(known)).sum()):  # float64 is checked as float32, as it will be used
            finding = f"{bad} of the {tensor.numel()} in {name} are NaN or infinite"
            if not allow_nonfinite:
                raise DamagedFileError(
                    f"{where}: every weight must be a finite number, but {finding}. The training that wrote it had "
                    "diverged; take an earlier checkpoint. vitrail inspect --allow-nonfinite shows this one."
                )
            notes.append(f"{finding}, so no prediction of this model means anything")
    return tuple(notes)


def nearest_name_hint(name: str, known: Collection[str]) -> str:
    """A hint, for messages, at the most similar of the known names; empty if none is similar."""
    short = [other for other in islice(known, MAX_COMPARED) if len(other) <= MAX_COMPARED_LETTERS]
    close = difflib.get_close_matches(name, short, n=1, cutoff=0.6) if len(name) <= MAX_COMPARED_LETTERS else []
    return f" (nearest name in the file: {close[0]})" if close else ""


# -- Limits of a described model, checked before any memory is allocated for it


def check_model_size(config: ViTConfig, where: str) -> None:
    """Refuse an implausibly large architecture; the message begins with `where` (the file).

    Raises:
        DamagedFileError: names the field, its limit and its value, or the number of parameters.
    """
    if oversize := describe_oversize(config):
        raise DamagedFileError(f"{where}: {oversize} {_ADVICE}")


# -- Audit: the load report that `vitrail inspect FILE` prints

TensorAction = Literal["loaded", "equal", "checked", "dropped"]


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One tensor of the file."""

    theirs: str
    """Its name in the file."""
    shape: tuple[int, ...]
    """Its shape in the file."""
    action: TensorAction
    """loaded: into ours; equal: a copy of a loaded one; checked: compared with ours; dropped: not needed."""
    ours: str
    """The parameter that it is loaded into, or the reason why it is not loaded."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Every tensor of a file, in the file's order."""

    layout: str
    """Name of the layout."""
    variant: str = ""
    """Variant of the layout."""
    rows: tuple[AuditRow, ...]
    """One row a tensor."""
    warnings: tuple[str, ...] = ()
    """Tensors with NaN or infinity, if the caller allows them."""

    def format_table(self) -> str:
        """The report as text: one line for each tensor, and the counts at the end."""
        lines = [("in the file", "shape", "", "in vitrail")]
        lines += [(row.theirs, "x".join(map(str, row.shape)) or "()", row.action, row.ours) for row in self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(3)]
        text = ["  ".join([*(word.ljust(n) for word, n in zip(line, widths, strict=False)), line[3]]) for line in lines]
        return "\n".join([*text, self.format_summary()])

    def format_summary(self) -> str:
        """The counts on one line, such as `layout xray-rope: 88 tensors, 64 loaded, 24 checked`."""
        counts = Counter(row.action for row in self.rows)
        tensors = format_count(len(self.rows), "tensor")
        variant = f" ({self.variant})" if self.variant else ""
        return f"layout {self.layout}{variant}: {tensors}" + "".join(f", {n} {action}" for action, n in counts.items())
