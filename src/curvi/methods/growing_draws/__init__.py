"""Newton's method on growing fixed draws."""

from curvi.methods.growing_draws.method import GrowingDraws as GrowingDraws
