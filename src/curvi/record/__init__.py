"""What a fit keeps of itself: counts of calls, history, wall time, progress, what resuming takes."""
