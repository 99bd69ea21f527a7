"""Records of a fit: counts of evaluations, history, wall time, progress, checkpoints."""
