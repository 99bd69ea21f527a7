"""The ELBO on draws that are never stored: sums over chunks of noise made from counters, wholly on the device."""
