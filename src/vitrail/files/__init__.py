"""Files that are whole or absent, checked by hash, and never run as code."""
