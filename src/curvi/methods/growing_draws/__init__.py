from curvi.methods.growing_draws.method import GrowingDraws as GrowingDraws
