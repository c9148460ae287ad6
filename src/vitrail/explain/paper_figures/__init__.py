"""Paper figures."""
