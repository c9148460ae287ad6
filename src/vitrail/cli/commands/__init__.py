"""The commands, one file each.

They import our own modules inside functions, so that `--help` starts without torch (end_to_end/test_help_time.py).
"""
