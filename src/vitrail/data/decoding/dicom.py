"""DICOM films: one frame, in the units that its own tables give, dark where little light came through.

pydicom parses, and brings or finds the decoders; only the elements named here are looked at.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ...errors import DataError
from ...spec import ImageSpec
from .jpeg_file import read_header
from .values import Stored, check_size, choose, truncated

KIND = "DICOM"
INSTALL = "pip install 'vitrail[medical]'"
DEFLATED = b"1.2.840.10008.1.2.1.99"
PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
JPEGS = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51")
PIXEL_TAG = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
WHITE = 65535
# fmt: off
ELEMENTS = (
    *PIXELS, "Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration",
    "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "WindowCenter",
    "WindowWidth", "VOILUTFunction", "VOILUTSequence",
    *(f"{colour}PaletteColorLookupTableDescriptor" for colour in ("Red", "Green", "Blue")),
    *(f"{colour}PaletteColorLookupTableData" for colour in ("Red", "Green", "Blue")),
    *(f"Segmented{colour}PaletteColorLookupTableData" for colour in ("Red", "Green", "Blue")),
)
# fmt: on


def parse_dicom(data: bytes, spec: ImageSpec) -> Stored:
    """The only frame of a file, or the one that the spec's `page` names.

    Grey films [H, W]: with the modality table or slope and intercept applied; MONOCHROME1, which counts white as 0, is
    turned round. By the spec's window "none" these values stay as they are, for low and high to cut; by "file" the
    film's own window or VOI table makes them 0..65535. Palettes, RGB and YBR come out as RGB [H, W, 3].

    Raises:
        DataError: no pixels, several frames, no window where one is asked for, a decoder that is not installed.
    """
    dataset = _read(data)
    if not any(name in dataset for name in PIXELS):
        if any(tag in data for tag in PIXEL_TAG):
            raise truncated(KIND, len(data))
        raise DataError("is a DICOM file without pixels (a report, a plan or an index); leave it out.")
    height, width = int(dataset.get("Rows") or 0), int(dataset.get("Columns") or 0)
    check_size(height, width, spec.max_pixels)
    frame = choose(max(1, int(dataset.get("NumberOfFrames") or 1)), spec.page, "frames")
    _check_pixels(dataset, spec.max_pixels)
    values = _pixels(dataset, frame)
    colours = str(dataset.PhotometricInterpretation)
    if colours == "PALETTE COLOR":
        return Stored(_palette(values, dataset))
    if values.ndim == 3:
        return Stored(values)
    return Stored(_grey(values, dataset, colours == "MONOCHROME1", spec.window == "file"))


def has_window(data: bytes) -> bool:
    """Whether a DICOM file says by itself what is black and white: by a window, a VOI table, or because it has colours.

    Raises:
        DataError: pydicom is not installed.
    """
    try:
        dataset = _read(data, pixels=False)
    except DataError:
        raise
    except Exception:  # what cannot be parsed has no window; reading it says why
        return False
    return bool(
        not str(dataset.get("PhotometricInterpretation", "")).startswith("MONOCHROME")
        or dataset.get("VOILUTSequence")
        or _window(dataset)
    )


def _read(data: bytes, pixels: bool = True) -> Any:
    try:
        import pydicom
    except ImportError as problem:
        raise DataError(f"DICOM files need pydicom: {INSTALL}.") from problem
    if DEFLATED in data[:4096]:
        raise DataError("is a DICOM file that is deflated as a whole, which hides its size; save it uncompressed.")
    return pydicom.dcmread(io.BytesIO(data), stop_before_pixels=not pixels, specific_tags=list(ELEMENTS))


def _check_pixels(dataset: Any, max_pixels: int) -> None:
    """Before anything is decoded: enough bytes, a decoder, and no codestream larger than the header says."""
    from pydicom.pixels.decoders.base import get_decoder

    pixels = next(dataset[name].value for name in PIXELS if name in dataset) or b""
    syntax = dataset.file_meta.TransferSyntaxUID
    if not syntax.is_compressed:
        frames = max(1, int(dataset.get("NumberOfFrames") or 1))
        samples = dataset.Rows * dataset.Columns * int(dataset.get("SamplesPerPixel") or 1) * frames
        needed = (samples * int(dataset.BitsAllocated) + 7) // 8
        if str(dataset.PhotometricInterpretation) == "YBR_FULL_422":
            needed = needed * 2 // 3
        if needed > len(pixels):
            raise DataError(f"truncated ({len(pixels):,} of {needed:,} bytes of pixels).")
        return
    _check_streams(pixels, str(syntax), max_pixels)
    decoder = get_decoder(syntax)
    if not decoder.is_available:
        raise DataError(
            f"is compressed as {syntax.name}, for which pydicom has no decoder here: {INSTALL}, and for lossless JPEG "
            "and JPEG-LS also pip install pylibjpeg-libjpeg."
        )


def _check_streams(pixels: bytes, syntax: str, max_pixels: int) -> None:
    """JPEG and JPEG 2000 inside have their own idea of their size, by which the decoder will go."""
    start = pixels.find(b"\xff\x4f\xff\x51")
    if start >= 0:
        width, height = (int.from_bytes(pixels[place : place + 4], "big") for place in (start + 8, start + 12))
        check_size(height, width, max_pixels)
    if syntax in JPEGS:
        header = read_header(pixels[max(0, pixels.find(b"\xff\xd8\xff")) :])
        check_size(header.height, header.width, max_pixels)


def _pixels(dataset: Any, frame: int) -> np.ndarray:
    """One frame as stored, [H, W] or RGB [H, W, 3]."""
    from pydicom.pixels.utils import pixel_array

    try:
        values = np.asarray(pixel_array(dataset, index=frame))
    except RuntimeError as problem:  # every decoder tried has given up
        name = dataset.file_meta.TransferSyntaxUID.name
        raise DataError(
            f"holds pixels compressed as {name} that no decoder here can read: they are damaged, or of a depth for "
            "which pip install pylibjpeg-libjpeg brings one."
        ) from problem
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _palette(values: np.ndarray, dataset: Any) -> np.ndarray:
    from pydicom.pixels.processing import apply_color_lut

    colours = np.asarray(apply_color_lut(values, dataset))
    return (colours >> 8).astype(np.uint8) if colours.dtype.itemsize == 2 else colours.astype(np.uint8)


def _grey(values: np.ndarray, dataset: Any, inverted: bool, windowed: bool) -> np.ndarray:
    if windowed:
        shown = _windowed(_in_units(values, dataset), dataset)
        return np.rint((1 - shown if inverted else shown) * WHITE).astype(np.uint16)
    return _in_units(_turned_round(values, dataset) if inverted else values, dataset)


def _turned_round(values: np.ndarray, dataset: Any) -> np.ndarray:
    """White as the largest number of the stored bits; a second time gives back the first."""
    if values.dtype.kind == "f":
        raise DataError("is a MONOCHROME1 film of floats, whose white nobody knows; save it as MONOCHROME2.")
    top = -1 if int(dataset.PixelRepresentation) else 2 ** int(dataset.BitsStored) - 1
    return (top - values.astype(np.int64)).astype(values.dtype)


def _in_units(values: np.ndarray, dataset: Any) -> np.ndarray:
    """Modality units, such as Hounsfield's, in float32; the stored whole numbers where the file names no others."""
    if dataset.get("ModalityLUTSequence"):
        return _looked_up(values, dataset.ModalityLUTSequence[0], dataset)
    slope, intercept = dataset.get("RescaleSlope"), dataset.get("RescaleIntercept")
    slope, intercept = 1.0 if slope is None else float(slope), 0.0 if intercept is None else float(intercept)
    if (slope, intercept) == (1, 0):
        return values
    return (values.astype(np.float64) * slope + intercept).astype(np.float32)


def _looked_up(values: np.ndarray, item: Any, dataset: Any) -> np.ndarray:
    """uint16 by a table: what lies before its first number gets the first entry, what lies behind it the last.

    Done here because pydicom 3.0 takes only the first 256 entries of a table whose entries have 8 bits.
    """
    entries, first, _ = (int(number) for number in item.LUTDescriptor)
    table = item.LUTData
    if isinstance(table, bytes):
        order = "<" if dataset.file_meta.TransferSyntaxUID.is_little_endian else ">"
        table = np.frombuffer(table, np.uint8 if len(table) in (entries, entries + 1) else f"{order}u2")
    table = np.asarray(table).astype(np.uint16)[: entries or 2**16]
    return table[(np.rint(values).astype(np.int64) - first).clip(0, len(table) - 1)]


def _windowed(values: np.ndarray, dataset: Any) -> np.ndarray:
    """0 (black) to 1 (white), by the film's VOI table or its window (DICOM PS3.3, C.11.2.1)."""
    if dataset.get("VOILUTSequence"):
        item = dataset.VOILUTSequence[0]
        shown = _looked_up(values, item, dataset).astype(np.float32)
        return (shown / (2 ** int(item.LUTDescriptor[2]) - 1)).clip(0, 1)
    window = _window(dataset)
    if window is None:
        raise DataError(
            "carries no window, which --image.window file asks of every film; take --image.window none, and say with "
            "--data.range what is black and white."
        )
    centre, width = window
    function = str(dataset.get("VOILUTFunction") or "LINEAR")
    exact = values.astype(np.float32)
    if function == "SIGMOID":
        return 1 / (1 + np.exp(-4 * (exact - centre) / width))
    if function == "LINEAR":
        centre, width = centre - 0.5, max(width - 1, 1e-6)
    return ((exact - centre) / width + 0.5).clip(0, 1)


def _window(dataset: Any) -> tuple[float, float] | None:
    """Centre and width of the first window, if there is one."""
    centre, width = _first(dataset.get("WindowCenter")), _first(dataset.get("WindowWidth"))
    return None if centre is None or width is None else (centre, width)


def _first(value: Any) -> float | None:
    """A number, or the first of several; None where there is none."""
    if value is None or value == "":
        return None
    return float(value if isinstance(value, int | float | str) else next(iter(value)))
