"""The ELBO on all rows, read in passes, by its difference from the ELBO on a sample of them."""
