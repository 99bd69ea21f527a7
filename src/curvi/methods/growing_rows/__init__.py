"""Newton's method on a sample of the rows, corrected by passes over all of them."""

from curvi.methods.growing_rows.method import GrowingRows as GrowingRows
