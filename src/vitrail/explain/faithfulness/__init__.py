"""Faithfulness."""
