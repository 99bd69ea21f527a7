"""The remaining gain in nats, its standard error, and consistency checks of the derivatives."""
