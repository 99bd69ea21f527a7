"""Module names of version 0.1: importing one warns and provides the names of its new location.

To be removed in version 0.3.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings

# Old module -> new locations of its public names.
MOVED: dict[str, tuple[str, ...]] = {
    "target": ("model.target", "model.minibatch", "model.latents", "model.origin", "model.tracing"),
    "support": ("model.support",),
    "factored": ("model.factored",),
    "black_box": ("model.black_box",),
    "over_draws": ("model.over_draws",),
    "start": ("estimate.start",),
    "drawing": ("estimate.sampling", "estimate.resample"),
    "clock": ("record.clock",),
    "ledger": ("record.counts", "record.history"),
    "progress": ("record.progress",),
    "plain": ("record.plain",),
    "certificate": ("certify.decrement",),
    "diagnostics.psis": ("estimate.psis",),
    "diagnostics.comparison": ("comparison",),
    "descent.trust": ("descent.dense",),
    "adapters.numpyro_origin": ("adapters.numpyro.origin",),
    "adapters.pymc_origin": ("adapters.pymc.origin",),
}
GONE = {
    "demo": "the demonstration is the command `curvi demo`",
    "examples": "models with exact answers stand in the folder benchmarks/reference_models of a checkout",
    "paused": "fits keep a `checkpoint` (curvi.record.checkpoint)",
    "stepwise": "every method is run by curvi.run",
    "pooled": "every method is run by curvi.run",
    "plates": "every method is run by curvi.run",
    "growing": "the default method is in curvi.methods.growing_draws",
    "loop": "the compiled loop of stepwise methods is in curvi.methods.stepwise",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Creates a module for an old name when it is imported."""

    def find_spec(self, fullname, path=None, target=None):
        old = fullname.removeprefix("curvi.")
        if not fullname.startswith("curvi.") or (old not in MOVED and old not in GONE):
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec):
        old = spec.name.removeprefix("curvi.")
        if old in GONE:
            raise ImportError(f"{spec.name} is gone since curvi 0.2: {GONE[old]}", name=spec.name)
        return types.ModuleType(spec.name)

    def exec_module(self, module):
        places = MOVED[module.__name__.removeprefix("curvi.")]
        new = [importlib.import_module(f"curvi.{place}") for place in places]
        for found in reversed(new):
            module.__dict__.update({name: value for name, value in vars(found).items() if not name.startswith("__")})
        warnings.warn(
            f"{module.__name__} has moved to {' and '.join(f'curvi.{place}' for place in places)}; "
            "the old name goes in curvi 0.3",
            DeprecationWarning,
            stacklevel=2,
        )


def find_old_names() -> None:
    """Let imports of old names find the new modules; last among the finders, so that other imports are not slowed."""
    if not any(type(finder).__name__ == _Finder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
