"""Controls: the next trust radius from predicted and actual gain, with its standard error."""

from curvi.control.radius import RadiusControl as RadiusControl
