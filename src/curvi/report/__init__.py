"""Display of results."""
