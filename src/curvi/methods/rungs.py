"""The families among which a fit may choose, in order of cost: whether each fits, its size and what it should gain."""

import math

import numpy as np

from curvi.certify.predicted import UNKNOWN_GAIN, PredictedGain, predict_arrow, predict_full_rank
from curvi.certify.predicted_band import predict_band, predict_regressed
from curvi.certify.predicted_blocks import predict_by_products
from curvi.certify.predicted_low_rank import Start, from_hessian, from_products, most_factors
from curvi.certify.predicted_shapes import predict_regressions
from curvi.family import FAMILIES, Family
from curvi.family.arrow import Arrow
from curvi.family.banded import known_chain
from curvi.family.bordered import known_arrow
from curvi.family.chain import Chain
from curvi.family.low_rank import why_not_low_rank
from curvi.methods.rung import Rung, most_products

_FEW = 64  # latents up to which the best gain of a band is computed, in place of a lower bound


class _MeanField(Rung):
    name = "mean_field"

    def why_not(self, target, q):
        return None

    def num_params(self, target, q):
        return q.num_params

    def num_tied(self, target, q):
        return 1

    def predict(self, precision, target, q):
        return PredictedGain(0.0, 0.0, math.nan if precision is None else precision.wider)

    def of(self, target, q):
        return q


def _arrow(target, q) -> Arrow:
    """The pattern of a q that it fits."""
    arrow = known_arrow(target, q)
    assert isinstance(arrow, Arrow)
    return arrow


def _chain(q) -> Chain:
    """The order of a q that has one."""
    chain = known_chain(q)
    assert isinstance(chain, Chain)
    return chain


class _Bordered(Rung):
    name = "bordered"

    def why_not(self, target, q):
        arrow = known_arrow(target, q)
        return arrow if isinstance(arrow, str) else None

    def num_params(self, target, q):
        arrow = known_arrow(target, q)
        return q.num_params if isinstance(arrow, str) else 2 * arrow.size + arrow.num_below

    def num_tied(self, target, q):
        arrow = known_arrow(target, q)
        return 1 if isinstance(arrow, str) else arrow.reach

    def predict(self, precision, target, q):
        return predict_arrow(precision, _arrow(target, q))

    def predict_by_products(self, product, sds, target, q, most):
        return predict_by_products(product, sds, _arrow(target, q), min(most, most_products(q)))

    def of(self, target, q):
        return FAMILIES[self.name].from_plates(target, q)


class _Banded(Rung):
    name = "banded"

    def why_not(self, target, q):
        chain = known_chain(q)
        return chain if isinstance(chain, str) else None

    def num_params(self, target, q):
        chain = known_chain(q)
        return q.num_params if isinstance(chain, str) else 2 * chain.size + chain.num_below

    def num_tied(self, target, q):
        chain = known_chain(q)
        return 1 if isinstance(chain, str) else chain.reach

    def predict(self, precision, target, q):
        if precision is None:
            return UNKNOWN_GAIN
        chain = _chain(q)
        order = chain.order()
        predict = predict_regressions if len(order) <= _FEW else predict_regressed
        nats = predict(precision.matrix[np.ix_(order, order)], chain.pattern())
        return PredictedGain(nats, predict_full_rank(precision).error, precision.wider)

    def predict_by_products(self, product, sds, target, q, most):
        return predict_band(product, sds, _chain(q), min(most, most_products(q)))

    def of(self, target, q):
        return FAMILIES[self.name].of(q)


class _LowRank(Rung):
    name = "low_rank"

    def why_not(self, target, q):
        return why_not_low_rank(q)

    def num_params(self, target, q):
        rank = most_factors(q.noise_size)
        return q.noise_size * (2 + rank) - rank * (rank - 1) // 2

    def num_tied(self, target, q):
        return most_factors(q.noise_size) + 2

    def predict(self, precision, target, q):
        if precision is None or (found := from_hessian(-precision.matrix)) is None:
            return UNKNOWN_GAIN
        return PredictedGain(found.nats, predict_full_rank(precision).error, precision.wider)

    def predict_by_products(self, product, sds, target, q, most):
        found = self._from_products(product, sds, q, most)
        return UNKNOWN_GAIN if found is None else PredictedGain(found.nats, math.nan, found.wider)

    def _from_products(self, product, sds, q, most) -> Start | None:
        return from_products(product, sds, min(most, most_products(q) // 4))

    def of(self, target, q):
        return FAMILIES[self.name].begun_from(q)

    def of_curved(self, target, q, hessian, product, sds):
        found = None if hessian is None else from_hessian(hessian)
        found = (
            self._from_products(product, sds, q, most_products(q)) if found is None and product is not None else found
        )
        return self.of(target, q) if found is None else FAMILIES[self.name].of(q, found.factors, found.scale)


class _FullRank(Rung):
    name = "full_rank"

    def why_not(self, target, q):
        return q.why_not_full_rank()

    def num_params(self, target, q):
        size = q.noise_size
        return size * (size + 3) // 2

    def num_tied(self, target, q):
        return q.noise_size

    def predict(self, precision, target, q):
        return predict_full_rank(precision)

    def of(self, target, q):
        return FAMILIES[self.name].of(q)


RUNGS: tuple[Rung, ...] = (_MeanField(), _Bordered(), _Banded(), _LowRank(), _FullRank())
MEAN_FIELD, ALL = RUNGS[0].name, RUNGS[-1].name  # the family that every other contains, and that contains every other


def rung(name: str) -> Rung:
    return next(one for one in RUNGS if one.name == name)


def name_of(q: Family) -> str:
    """The name of the family of q."""
    return next((name for name, kind in FAMILIES.items() if type(q) is kind), type(q).__name__)
