"""Programs that compile fast."""

import functools

import jax

# For XLA on a CPU. Level 3 takes longer to compile than level 1, and what it makes of wide loops can be slower. Code
# from fusion emitters takes twice as long to compile as code without, and runs no faster in small loops; JAX 0.11 has
# lost the choice. What XLA does not know it refuses, and the next row is tried.
_OPTIONS = ({"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False},)
_OPTIONS += ({"xla_backend_optimization_level": 1}, {})
_row = [0 if jax.__version_info__ < (0, 11) else 1]


def program(*static: int):
    """Compiles a function with these static arguments, for fast compilation where XLA knows how.

    Equinox's filtered jit would do the same at ten times the overhead a call, which counts where a call is short.
    """

    def compiled(function):
        @functools.cache
        def version(row: int):
            return jax.jit(function, static_argnums=static, compiler_options=_OPTIONS[row])

        @functools.wraps(function)
        def run(*arguments):
            try:
                return version(_row[0])(*arguments)
            except jax.errors.JaxRuntimeError as error:
                if "No such compile option" not in str(error):
                    raise
            _row[0] += 1
            return run(*arguments)

        return run

    return compiled
