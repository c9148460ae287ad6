"""Augmentation of batches of uint8 images on their device: crops, affine, colour, policies, mixup and cutmix."""
