"""Pre-training on one's own pictures before the training: masked autoencoding."""
