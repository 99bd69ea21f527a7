"""Reading of supports."""

import numpy as np
import pytest
from numpyro.distributions import biject_to, constraints

from curvi.model import support as supports

VALUES = {
    "real": (constraints.real, np.array([-1.0, 2.5])),
    "positive": (constraints.positive, np.array([0.2, 3.0])),
    "softplus positive": (constraints.softplus_positive, np.array([0.2, 3.0])),
    "unit interval": (constraints.unit_interval, np.array([0.1, 0.9])),
    "interval": (constraints.interval(-2.0, 5.0), np.array([-1.5, 4.0])),
    "greater than": (constraints.greater_than(3.0), np.array([3.5, 8.0])),
    "less than": (constraints.less_than(3.0), np.array([2.5, -8.0])),
    "interval of vectors": (
        constraints.independent(constraints.interval(0.0, np.array([1.0, 2.0])), 1),
        np.ones(2) / 3,
    ),
    "simplex": (constraints.simplex, np.array([0.2, 0.3, 0.5])),
    "ordered": (constraints.ordered_vector, np.array([-1.0, 0.5, 2.0])),
    "correlation": (constraints.corr_cholesky, np.array([[1.0, 0.0], [0.6, 0.8]])),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_taken_to_where_the_bijection_has_them_from(name):
    support, value = VALUES[name]
    found = supports.to_real(support, value)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, biject_to(support).inv(value), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(biject_to(support)(found), value, rtol=1e-9, atol=1e-9)


def test_the_ends_of_an_interval_are_infinitely_far():
    assert np.array_equal(supports.to_real(constraints.unit_interval, np.array([0.0, 1.0])), [-np.inf, np.inf])
