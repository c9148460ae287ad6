"""One file for each family of checkpoints: its table of tensor names, and how shapes give the architecture."""
