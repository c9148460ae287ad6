"""Inference, stored predictions, and the metrics computed from stored predictions."""
