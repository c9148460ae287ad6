"""Distill."""
