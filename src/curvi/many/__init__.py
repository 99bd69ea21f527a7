"""One model on many data sets: fits that advance together, and what becomes of those that do not converge there."""
