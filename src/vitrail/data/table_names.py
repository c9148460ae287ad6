"""Endings of the tables that name pictures."""

from __future__ import annotations

MANIFESTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
