"""DICOM films: one frame, in the units that its own tables give, dark where little light came through.

pydicom parses, and brings or finds the decoders; only the elements named here are looked at.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ...errors import DataError
from ...spec import ImageSpec
from .film_values import WHITE, grey, shows_itself
from .jpeg_file import read_header
from .values import Stored, check_size, choose, truncated

__all__ = ["WHITE", "has_window", "parse_dicom"]
KIND = "DICOM"
INSTALL = "pip install 'vitrail[medical]'"
DEFLATED = b"1.2.840.10008.1.2.1.99"
PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
JPEGS = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51")
PIXEL_TAG = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
# fmt: off
ELEMENTS = (
    *PIXELS, "Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration",
    "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "WindowCenter",
    "WindowWidth", "VOILUTFunction", "VOILUTSequence", "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
    *(f"{numbers}PixelPadding{end}" for numbers in ("", "Float", "DoubleFloat") for end in ("Value", "RangeLimit")),
    *(f"{colour}PaletteColorLookupTableDescriptor" for colour in ("Red", "Green", "Blue")),
    *(f"{colour}PaletteColorLookupTableData" for colour in ("Red", "Green", "Blue")),
    *(f"Segmented{colour}PaletteColorLookupTableData" for colour in ("Red", "Green", "Blue")),
)
# fmt: on


def parse_dicom(data: bytes, spec: ImageSpec) -> Stored:
    """The only frame of a file, or the one that the spec's `page` names.

    Grey films [H, W]: with the modality table or slope and intercept applied; MONOCHROME1, which counts white as 0, is
    turned round. By the spec's window "none" these values stay as they are, for low and high to cut; by "file" the
    film's own window or VOI table makes them 0..65535. Padding becomes the darkest value of the rest. Palettes, RGB and
    YBR come out as RGB [H, W, 3].

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
    if str(dataset.PhotometricInterpretation) == "PALETTE COLOR":
        return Stored(_palette(values, dataset))
    if values.ndim == 3:
        return Stored(values)
    return Stored(grey(values, dataset, frame, spec.window == "file"))


def has_window(data: bytes, page: int = 0) -> bool:
    """Whether a DICOM file says by itself what is black and white: by a window, a VOI table, or because it has colours.

    A window that nothing can be seen through, such as one of width 0, is none.

    Args:
        page: the frame that is asked about, as in `ImageSpec`.

    Raises:
        DataError: pydicom is not installed.
    """
    try:
        dataset = _read(data, pixels=False)
    except DataError:
        raise
    except Exception:  # what cannot be parsed has no window; reading it says why
        return False
    try:
        colours = str(dataset.get("PhotometricInterpretation", ""))
        return not colours.startswith("MONOCHROME") or shows_itself(dataset, max(0, page - 1))
    except Exception:  # its elements are parsed only here
        return False


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
