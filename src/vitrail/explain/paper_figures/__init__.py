"""Figures of the ViT, DINO, DINOv2, DINOv3 and registers papers, drawn for any model and image."""
