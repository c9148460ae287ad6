"""Augment."""
