"""Models: log densities with named latents, shapes and supports."""
