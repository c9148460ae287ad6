"""Decode one frame of a DICOM file: modality rescale or lookup table, optional window (VOI), padding, palettes.

pydicom parses and finds the decoders; only the elements listed here are read. Grey frames come out with black as the
lowest value, MONOCHROME1 included.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from ...errors import DataError
from ...spec import ImageSpec
from .decoded_image import (
    DecodedImage,
    check_image_size,
    choose_page,
    damaged_error,
    fill_padding,
    palette_to_bytes,
    truncated_error,
)
from .jpeg import read_jpeg_header

DICOM = "DICOM"
INSTALL = "pip install 'vitrail[medical]'"
DEFLATED_SYNTAX = b"1.2.840.10008.1.2.1.99"
PIXEL_ELEMENTS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
JPEG_SYNTAXES = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51")
REQUIRED = ("Rows", "Columns", "PhotometricInterpretation", "BitsAllocated")
REQUIRED_OF_INTEGERS = ("BitsStored", "PixelRepresentation")
GREY, PALETTE = ("MONOCHROME1", "MONOCHROME2"), "PALETTE COLOR"
PIXEL_TAGS = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
ELEMENTS = (
    *PIXEL_ELEMENTS,
    "Rows",
    "Columns",
    "NumberOfFrames",
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "PlanarConfiguration",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
    "RescaleSlope",
    "RescaleIntercept",
    "ModalityLUTSequence",
    "WindowCenter",
    "WindowWidth",
    "VOILUTFunction",
    "VOILUTSequence",
    "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
    *(f"{numbers}PixelPadding{end}" for numbers in ("", "Float", "DoubleFloat") for end in ("Value", "RangeLimit")),
    *(f"{colour}PaletteColorLookupTableDescriptor" for colour in ("Red", "Green", "Blue")),
    *(f"{colour}PaletteColorLookupTableData" for colour in ("Red", "Green", "Blue")),
    *(f"Segmented{colour}PaletteColorLookupTableData" for colour in ("Red", "Green", "Blue")),
)


def parse_dicom(data: bytes, spec: ImageSpec) -> DecodedImage:
    """Parse the only frame of a file, or the one that the spec's `page` names.

    Grey frames [H, W] have the modality table or slope and intercept applied; MONOCHROME1, where 0 is white, is
    inverted. With the spec's window "none" these values are kept, and low..high maps them later; with "file" the
    file's own window or VOI table maps them to 0..65535. Padding becomes the darkest value of the rest. Palettes, RGB
    and YBR become RGB [H, W, 3].

    A header is completed only where the standard leaves no choice; without a transfer syntax the file says itself how
    it is written.

    Raises:
        DataError: no pixels or only padding, an incomplete header, several frames, no window where one is required, an
            undefined white, a decoder that is not installed.
    """
    dataset = _read_dataset(data)
    if not any(name in dataset for name in PIXEL_ELEMENTS):
        if any(tag in data for tag in PIXEL_TAGS):
            raise truncated_error(DICOM, len(data))
        raise DataError("is a DICOM file without pixels (a report, a plan or an index); leave it out.")
    _complete_header(dataset)
    height, width = int(dataset.Rows), int(dataset.Columns)
    check_image_size(height, width, spec.max_pixels)
    _check_pixels(dataset, spec.max_pixels)
    dataset.NumberOfFrames = max(1, dataset.NumberOfFrames)
    frame = choose_page(dataset.NumberOfFrames, spec.page, "frames")
    values = _decode_frame(dataset, frame)
    if dataset.PhotometricInterpretation == PALETTE:
        return DecodedImage(_apply_palette(values, dataset))
    if values.ndim == 3:
        return DecodedImage(values)
    grey = apply_dicom_values(values, dataset, frame, spec.window == "file")
    return DecodedImage(grey * 255 if dataset.BitsAllocated == 1 and grey.dtype == np.uint8 else grey)


def has_window(data: bytes, page: int = 0) -> bool:
    """Whether a DICOM file defines black and white itself: by a window, a VOI table, or because it has colours.

    An invalid window, such as one of width 0, does not count.

    Args:
        page: the frame, as in `ImageSpec`.

    Raises:
        DataError: pydicom is not installed.
    """
    try:
        dataset = _read_dataset(data, pixels=False)
    except DataError:
        raise
    except Exception:  # an unparsable file has no window; `parse_dicom` raises the error
        return False
    try:
        colours = str(dataset.get("PhotometricInterpretation") or "")
        if not colours.startswith("MONOCHROME"):
            return bool(colours)
        frame = max(0, page - 1)
        group = _functional_group(dataset, frame, "FrameVOILUTSequence")
        return bool(group.get("VOILUTSequence")) or _read_window(dataset, frame) is not None
    except Exception:  # pydicom parses elements lazily, so errors may appear only here
        return False


def _read_dataset(data: bytes, pixels: bool = True) -> Any:
    try:
        import pydicom
    except ImportError as problem:
        raise DataError(f"DICOM files need pydicom: {INSTALL}.") from problem
    if DEFLATED_SYNTAX in data[:4096]:
        raise DataError("is a DICOM file that is deflated as a whole, which hides its size; save it uncompressed.")
    elements = list(ELEMENTS)
    return pydicom.dcmread(io.BytesIO(data), stop_before_pixels=not pixels, specific_tags=elements, force=True)


def _complete_header(dataset: Any) -> None:
    """Fill in what the standard leaves no choice about.

    Raises:
        DataError: the rest of what is needed is missing, or the colours are of an unknown kind.
    """
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    needed = REQUIRED + (REQUIRED_OF_INTEGERS if "PixelData" in dataset else ())
    missing = [name for name in needed if dataset.get(name) in (None, "")]
    if "TransferSyntaxUID" not in dataset.file_meta:
        implicit, little = dataset.original_encoding
        explicit = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
        dataset.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if implicit else explicit
        if "PixelData" in dataset and dataset["PixelData"].is_undefined_length:
            missing.append("TransferSyntaxUID")
    colours = str(dataset.get("PhotometricInterpretation"))
    dataset.NumberOfFrames = int(dataset.get("NumberOfFrames") or 0)
    if dataset.get("SamplesPerPixel") is None:
        dataset.SamplesPerPixel = 1 if colours in (*GREY, PALETTE) else 3
    if dataset.SamplesPerPixel > 1 and dataset.get("PlanarConfiguration") is None:
        if dataset.file_meta.TransferSyntaxUID.is_compressed:
            dataset.PlanarConfiguration = 0
        else:
            missing.append("PlanarConfiguration")
    if missing:
        raise DataError(
            f"is a DICOM file that does not say {', '.join(missing)}, so its pixels could mean several things; set it "
            "(dcmodify does), or leave the file out."
        )
    if colours not in (*GREY, PALETTE, "RGB") and not colours.startswith("YBR_"):
        raise DataError(f"is a DICOM file in colours that Vitrail does not know ({colours}); save it as RGB.")


def _check_pixels(dataset: Any, max_pixels: int) -> None:
    """Check before decoding: enough bytes, a decoder, and no codestream larger than the header states.

    Frames that the file does not count are counted by their bytes.
    """
    from pydicom.pixels.decoders.base import get_decoder

    pixels = next(dataset[name].value for name in PIXEL_ELEMENTS if name in dataset) or b""
    syntax = dataset.file_meta.TransferSyntaxUID
    try:
        decoder = get_decoder(syntax) if syntax.is_compressed else None
    except (NotImplementedError, ValueError) as problem:  # a video, or a syntax that pydicom does not know
        raise DataError(
            f"is compressed as {syntax.name}, which pydicom does not read; save it uncompressed."
        ) from problem
    if decoder is None:
        samples = dataset.Rows * dataset.Columns * dataset.SamplesPerPixel
        if dataset.PhotometricInterpretation == "YBR_FULL_422":
            samples = samples * 2 // 3
        bits = samples * int(dataset.BitsAllocated)
        uncounted = 8 * len(pixels) // bits
        if not dataset.NumberOfFrames and 8 * len(pixels) - uncounted * bits <= 8 < bits:
            dataset.NumberOfFrames = max(1, uncounted)
        needed = (bits * max(1, dataset.NumberOfFrames) + 7) // 8
        if needed > len(pixels):
            raise DataError(f"truncated ({len(pixels):,} of {needed:,} bytes of pixels).")
        return
    _check_streams(pixels, str(syntax), max_pixels)
    if not decoder.is_available:
        raise DataError(
            f"is compressed as {syntax.name}, for which pydicom has no decoder here: {INSTALL}, and for lossless JPEG "
            "and JPEG-LS also pip install pylibjpeg-libjpeg."
        )


def _check_streams(pixels: bytes, syntax: str, max_pixels: int) -> None:
    """Check the size in embedded JPEG and JPEG 2000 headers, which the decoder obeys instead of the DICOM header."""
    start = pixels.find(b"\xff\x4f\xff\x51")
    if start >= 0:
        width, height = (int.from_bytes(pixels[place : place + 4], "big") for place in (start + 8, start + 12))
        check_image_size(height, width, max_pixels)
    if syntax in JPEG_SYNTAXES:
        header = read_jpeg_header(pixels[max(0, pixels.find(b"\xff\xd8\xff")) :])
        check_image_size(header.height, header.width, max_pixels)


def _decode_frame(dataset: Any, frame: int) -> np.ndarray:
    """Decode one frame as stored, [H, W] or RGB [H, W, 3]."""
    from pydicom.pixels.utils import pixel_array

    shift = 0
    if dataset.get("HighBit") and not dataset.file_meta.TransferSyntaxUID.is_compressed and "PixelData" in dataset:
        shift = max(0, int(dataset.HighBit) + 1 - int(dataset.BitsStored))  # old files fill words from the top
        dataset.BitsStored += shift
    try:
        values = np.asarray(pixel_array(dataset, index=frame))
    except RuntimeError as problem:  # every decoder tried has given up
        name = dataset.file_meta.TransferSyntaxUID.name
        raise DataError(
            f"holds pixels compressed as {name} that no decoder here can read: they are damaged, or of a depth for "
            "which pip install pylibjpeg-libjpeg brings one."
        ) from problem
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if shift:
        dataset.BitsStored -= shift
        values = values >> shift
    return values


def _apply_palette(values: np.ndarray, dataset: Any) -> np.ndarray:
    """Map stored values [H, W] to RGB [H, W, 3] of 8 bits."""
    # Not by pydicom, whose version 3.0 refuses tables of an odd number of bytes and counts entries in their own type.
    tables: list[np.ndarray] = []
    for colour in ("Red", "Green", "Blue"):
        descriptor = dataset.get(f"{colour}PaletteColorLookupTableDescriptor") or ()
        data = dataset.get(f"{colour}PaletteColorLookupTableData")
        if data is None and len(descriptor) == 3 and f"Segmented{colour}PaletteColorLookupTableData" in dataset:
            from pydicom.pixels.processing import apply_color_lut

            entries, first, _ = (int(number) for number in descriptor)
            indices = np.arange(first, first + (entries or 2**16))
            data = np.asarray(apply_color_lut(indices, dataset))[..., len(tables)]
        if len(descriptor) != 3 or data is None:
            raise damaged_error(DICOM, f"it is in colours of a palette and has no {colour.lower()} table")
        tables.append(_read_table(descriptor, data, dataset))
    if len({len(table) for table in tables}) > 1:
        raise damaged_error(DICOM, "its palette has more entries of one colour than of another")
    palette = palette_to_bytes(np.stack(tables, axis=-1))
    first = int(dataset.RedPaletteColorLookupTableDescriptor[1])
    return palette[(values.astype(np.int64) - first).clip(0, len(palette) - 1)]


# -- Grey values: rescale, window and padding of one frame. Enhanced multi-frame files give these per frame, in
# functional groups; others give them once.

WHITE = 65535
MAX_SIGMOID_EXPONENT = 80.0  # beyond it float32 gives plain black or white
PADDING_ELEMENTS = {"f4": "FloatPixelPadding", "f8": "DoubleFloatPixelPadding"}  # PixelPadding for integers


def apply_dicom_values(values: np.ndarray, dataset: Any, frame: int, windowed: bool) -> np.ndarray:
    """Convert one frame's stored values [H, W] to its units, black lowest; with a window to 0..65535."""
    inverted = str(dataset.PhotometricInterpretation) == "MONOCHROME1"
    padding = _padding_mask(values, dataset)
    if windowed:
        shown = _apply_window(_apply_rescale(values, dataset, frame), dataset, frame)
        grey = np.rint((1 - shown if inverted else shown) * WHITE).astype(np.uint16)
    else:
        grey = _apply_rescale(_invert_stored(values, dataset) if inverted else values, dataset, frame)
    return grey if padding is None else fill_padding(grey, padding)


def _padding_mask(values: np.ndarray, dataset: Any) -> np.ndarray | None:
    """Mask of padding pixels: one stored value, or the range up to its limit (DICOM PS3.3, C.7.5.1.1.2)."""
    name = PADDING_ELEMENTS.get(values.dtype.str[1:], "PixelPadding")
    first, last = (_wrap_to_dtype(dataset.get(name + end), values.dtype) for end in ("Value", "RangeLimit"))
    if first is None:
        return None
    low, high = sorted((first, first if last is None else last))
    padding = (values >= low) & (values <= high)
    return padding if padding.any() else None


def _wrap_to_dtype(value: Any, dtype: np.dtype[Any]) -> float | None:
    """A stored value in the dtype of the pixels: files also write -2000 as 63536; None if the dtype cannot hold it."""
    if value is None or value == "":
        return None
    if dtype.kind == "f":
        return float(dtype.type(value))
    info = np.iinfo(dtype)
    candidates = (int(value), int(value) - 2**16, int(value) + 2**16)
    return next((each for each in candidates if info.min <= each <= info.max), None)


def _invert_stored(values: np.ndarray, dataset: Any) -> np.ndarray:
    """Invert MONOCHROME1 within the stored bits, so that white is the largest value; its own inverse."""
    if values.dtype.kind == "f":
        raise DataError("is a MONOCHROME1 film of floats, whose white is undefined; save it as MONOCHROME2.")
    top = -1 if int(dataset.PixelRepresentation) else 2 ** int(dataset.BitsStored) - 1
    return (top - values.astype(np.int64)).astype(values.dtype)


def _apply_rescale(values: np.ndarray, dataset: Any, frame: int) -> np.ndarray:
    """Convert to modality units such as Hounsfield units, in float32; integers stay without slope and intercept."""
    place = _functional_group(dataset, frame, "PixelValueTransformationSequence")
    if place.get("ModalityLUTSequence"):
        return _apply_lut(values, place.ModalityLUTSequence[0], dataset)
    slope, intercept = place.get("RescaleSlope"), place.get("RescaleIntercept")
    slope, intercept = 1.0 if slope is None else float(slope), 0.0 if intercept is None else float(intercept)
    if slope == 0:
        raise DataError("has a RescaleSlope of 0, by which all its pixels would be equal; correct it, or leave it out.")
    if (slope, intercept) == (1, 0):
        return values
    return (values.astype(np.float64) * slope + intercept).astype(np.float32)


def _functional_group(dataset: Any, frame: int, group: str) -> Any:
    """The dataset that holds a functional group: the frame's own, the shared one, or the file."""
    frames = dataset.get("PerFrameFunctionalGroupsSequence") or ()
    if 0 < len(frames) <= frame:
        raise damaged_error("DICOM", f"it describes {len(frames):,} frames and holds more")
    for item in (*frames[frame : frame + 1], *(dataset.get("SharedFunctionalGroupsSequence") or ())[:1]):
        if items := item.get(group):
            return items[0]
    return dataset


def _apply_lut(values: np.ndarray, item: Any, dataset: Any) -> np.ndarray:
    """Map values to uint16 by a lookup table; values outside the table get its first or last entry."""
    table = _read_table(item.LUTDescriptor, item.LUTData, dataset)
    return table[(np.rint(values).astype(np.int64) - int(item.LUTDescriptor[1])).clip(0, len(table) - 1)]


def _read_table(descriptor: Any, table: Any, dataset: Any) -> np.ndarray:
    """The entries of a lookup table as uint16."""
    # Not by pydicom, whose version 3.0 takes only the first 256 entries of a table whose entries have 8 bits.
    entries = int(descriptor[0]) or 2**16
    if isinstance(table, bytes):
        order = "<" if dataset.file_meta.TransferSyntaxUID.is_little_endian else ">"
        table = np.frombuffer(table, np.uint8 if len(table) in (entries, entries + 1) else f"{order}u2")
    return np.asarray(table).astype(np.uint16)[:entries]


def _apply_window(values: np.ndarray, dataset: Any, frame: int) -> np.ndarray:
    """Map values to 0 (black) .. 1 (white) by the frame's VOI table or window (DICOM PS3.3, C.11.2.1)."""
    place = _functional_group(dataset, frame, "FrameVOILUTSequence")
    if place.get("VOILUTSequence"):
        item = place.VOILUTSequence[0]
        bits = int(item.LUTDescriptor[2])
        if bits < 1:
            raise damaged_error("DICOM", f"its VOI table has entries of {bits} bits")
        return (_apply_lut(values, item, dataset).astype(np.float32) / (2**bits - 1)).clip(0, 1)
    window = _read_window(dataset, frame)
    if window is None:
        raise DataError(
            "carries no window, which --image.window file asks of every film; take --image.window none, and say with "
            "--data.range what is black and white."
        )
    centre, width, function = window
    exact = values.astype(np.float32)
    if function == "SIGMOID":
        steps = (-4 * (exact - centre) / width).clip(-MAX_SIGMOID_EXPONENT, MAX_SIGMOID_EXPONENT)
        return 1 / (1 + np.exp(steps))
    if function == "LINEAR":
        centre, width = centre - 0.5, width - 1
    if width == 0:
        return (exact > centre).astype(np.float32)
    return ((exact - centre) / width + 0.5).clip(0, 1)


def _read_window(dataset: Any, frame: int) -> tuple[float, float, str] | None:
    """Centre, width and function (LINEAR, LINEAR_EXACT, SIGMOID) of the first window; None if it is invalid."""
    place = _functional_group(dataset, frame, "FrameVOILUTSequence")
    centre, width = _first_number(place.get("WindowCenter")), _first_number(place.get("WindowWidth"))
    function = str(place.get("VOILUTFunction") or "LINEAR")
    if centre is None or width is None or not (math.isfinite(centre) and math.isfinite(width)):
        return None
    narrow = width < 1 if function == "LINEAR" else width <= 0
    return None if narrow else (centre, width, function)


def _first_number(value: Any) -> float | None:
    """A number, or the first of several; None where there is none."""
    if value is None or value == "":
        return None
    return float(value if isinstance(value, int | float | str) else next(iter(value)))
