"""One file a format: from the bytes of a picture to the values stored in it."""
