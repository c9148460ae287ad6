"""Writers of other libraries' files and folders, one a library."""
