"""One file a family of checkpoints: its table of names, and how its shapes tell the architecture."""
