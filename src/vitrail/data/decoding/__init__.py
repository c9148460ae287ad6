"""Decoders, one file per family of formats: from the bytes of an image to its stored values."""
