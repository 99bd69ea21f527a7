"""Diagnostics: what a fit and its curvature say beyond the fitted q."""
