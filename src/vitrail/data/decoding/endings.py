"""Endings of picture files."""

from __future__ import annotations

ENDINGS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff", ".npy"}
    | {".dcm", ".dicom"}
)
