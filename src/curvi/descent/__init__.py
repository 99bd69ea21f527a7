"""Descents: a step from a local model and the trust radius in nats."""

from curvi.descent.newton import NewtonStep as NewtonStep
from curvi.descent.newton import Step as Step
from curvi.descent.newton import natural_gradient_step as natural_gradient_step
from curvi.descent.newton import newton_step as newton_step
from curvi.descent.newton import trust_region_step as trust_region_step
