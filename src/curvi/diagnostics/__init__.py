"""Diagnostics from a fit and its curvature."""
