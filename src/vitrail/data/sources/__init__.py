"""Readers of datasets, one file per format; each returns a `Source`."""
