"""Images and labels: sources, decoding, splits, augmentation, loading. Knows nothing of models."""
