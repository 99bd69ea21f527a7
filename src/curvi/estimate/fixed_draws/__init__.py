"""The ELBO on fixed draws as a deterministic function, by compiled sweeps over the draws."""
