"""Distillation from a CNN, a trained model, or the features of a ViT."""
