"""Random changes of whole batches of uint8 pictures: one idea a file. Crops and flips lie in `data/augment.py`."""
