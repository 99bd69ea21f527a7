"""Who runs in the races, and with which grids: at least five rates for every first-order method, several numbers of
draws for the best of them."""

import optax

from curvi.estimate import AnchoredScore, PaperScore, ParameterControl, Pathwise
from curvi.methods import (
    BBVI,
    LBFGS,
    Algorithm0,
    HessianFree,
    NaturalGradient,
    Safeguard,
    SchemeI,
    SchemeII,
    adaptive_rate,
    robbins_monro,
)
from curvi.solve import CG, ShermanMorrison, Woodbury
from race import Entry

ADAM = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
PLAIN = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
NATURAL = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
DECAYING = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
DECAYING_PLAIN = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
MEMORY = (1.0, 3.0, 10.0, 30.0, 100.0)
DAMPING = (0.001, 0.03, 0.1, 0.3, 1.0)
FEW_DAMPING = (0.001, 0.03, 0.3)
STEP_LENGTH = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)


def first_order(num_draws) -> list[Entry]:
    """Score methods that use the gradient alone; the Fisher information of q is known without any call."""
    found = []

    def add(method, S, estimator, optimiser, rates, natural=False, rate="rate"):
        setting = {"num_draws": S, "tuned": rate}
        found.append(Entry(method, setting, lambda r: BBVI(optimiser(r), estimator, natural), rates))

    for S in num_draws:
        score = AnchoredScore(S)
        add("Adam, anchored score", S, score, optax.adam, ADAM)
        add("natural gradient, constant rate", S, score, optax.sgd, NATURAL, True)
    for S in num_draws[1:]:
        score = AnchoredScore(S)
        add("natural gradient, Robbins-Monro", S, score, robbins_monro, DECAYING, True, "scale")
        add("natural gradient, adaptive rate", S, score, adaptive_rate, MEMORY, True, "memory")
    S = num_draws[1]
    controlled = AnchoredScore(S, control=ParameterControl())
    add("Adam, anchored score, control variate", S, controlled, optax.adam, ADAM)
    add("SGD, anchored score", S, AnchoredScore(S), optax.sgd, PLAIN)
    add("Robbins-Monro, anchored score", S, AnchoredScore(S), robbins_monro, DECAYING_PLAIN, rate="scale")
    S = num_draws[-1]
    add("Adam, paper's score", S, PaperScore(S), optax.adam, (0.0025, 0.005, *ADAM[:5]))
    add("Robbins-Monro, paper's score", S, PaperScore(S), robbins_monro, DECAYING_PLAIN, rate="scale")
    controlled = PaperScore(S, control=ParameterControl())
    add("Robbins-Monro, paper's score, control variate", S, controlled, robbins_monro, DECAYING_PLAIN, rate="scale")
    return found


def trust_region_gradient(num_draws) -> list[Entry]:
    """Our own first-order method: the safe step without the curvature."""
    return [
        Entry("NaturalGradient", {"num_draws": S}, lambda _, S=S: NaturalGradient(AnchoredScore(S))) for S in num_draws
    ]


def second_order(num_draws, other_draws: int) -> list[Entry]:
    """Schemes I and II and Algorithm 0 on the anchored score."""
    found = []

    def add(method, S, build, damping=FEW_DAMPING):
        found.append(Entry(method, {"num_draws": S, "tuned": "damping"}, build, damping, "second"))

    for S in num_draws:
        build = lambda r, S=S: SchemeI(CG(max_steps=50), AnchoredScore(S), Safeguard(damping=r))  # noqa: E731
        add("Scheme I, CG", S, build, DAMPING)
    S, score = other_draws, AnchoredScore(other_draws)
    add("Scheme I, Woodbury", S, lambda r: SchemeI(Woodbury(), score, Safeguard(damping=r)))
    add("Scheme I, Sherman-Morrison", S, lambda r: SchemeI(ShermanMorrison(), score, Safeguard(damping=r)))
    add("Scheme II", S, lambda r: SchemeII(estimator=score, safeguard=Safeguard(damping=r)))
    add("Algorithm 0", S, lambda r: Algorithm0(score, safeguard=Safeguard(damping=r)))
    return found


def literal(num_draws: int) -> list[Entry]:
    """The paper's algorithms as printed, at the best step length (or constant C0) of a grid."""
    S = num_draws
    setting = {"num_draws": S, "tuned": "step length"}
    return [
        Entry(
            "Algorithm 0, as printed",
            setting,
            lambda r: Algorithm0.literal(S, step_length=r),
            STEP_LENGTH,
            "second",
        ),
        Entry(
            "Scheme I, as printed, Sherman-Morrison",
            setting,
            lambda r: SchemeI.literal(S, step_length=r, solver=ShermanMorrison()),
            STEP_LENGTH,
            "second",
        ),
        Entry(
            "Scheme II, as printed",
            {"num_draws": S, "tuned": "C0"},
            lambda r: SchemeII.literal(r, S, max_terms=20),
            (1e2, 1e3, 1e4, 1e5, 1e6),
            "second",
        ),
    ]


def pathwise(num_draws) -> list[Entry]:
    """Methods that differentiate the model: another kind of call, shown for scale."""
    found = [
        Entry("HessianFree", {"num_draws": S}, lambda _, S=S: HessianFree(Pathwise(S)), order="pathwise")
        for S in num_draws
    ]
    S = num_draws[-1]
    return [*found, Entry("LBFGS", {"num_draws": S}, lambda _: LBFGS(S), order="pathwise")]
