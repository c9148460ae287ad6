"""One file a format; every one of them hands out one `Source`."""
