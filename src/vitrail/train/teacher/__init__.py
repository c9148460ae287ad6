"""Somebody else's answers beside the labels: distillation from a trained model, a small CNN, or another's features."""
