"""Augmentation of batches of images on their device: crops, affine, colour, policies, mixup and cutmix."""
