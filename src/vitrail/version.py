"""The version of the package, also where it is not installed; that of pyproject.toml."""

__version__ = "0.1.0"
