"""Images and labels: sources, decoding, splits, augmentation, loading. Does not depend on models."""
