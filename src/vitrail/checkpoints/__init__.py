"""The checkpoints room: foreign weight files by complete tables of names, and the portable bundle of our own."""
