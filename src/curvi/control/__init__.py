"""Controls: from predicted and actual gain, with its standard error, to the next scalar."""

from curvi.control.radius import RadiusControl as RadiusControl
