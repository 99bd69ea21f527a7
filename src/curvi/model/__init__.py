"""Models: log densities with names, shapes and supports, as inference sees them."""
