"""Comparisons with independent implementations on shared random weights."""
