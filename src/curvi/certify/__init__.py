"""How many nats are left to gain, how sure that is, and whether the derivatives can be believed."""
