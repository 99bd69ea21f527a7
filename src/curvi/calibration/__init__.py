"""Simulation-based calibration: ranks of true values among draws of fits to data that were simulated from the prior."""
