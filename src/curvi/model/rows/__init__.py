"""Rows of data that need not fit in memory: in files, arrays or loaders, read in chunks of one size."""
