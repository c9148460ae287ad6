"""The model room: one plain Vision Transformer, from images to logits. It knows nothing of data, training or files."""
