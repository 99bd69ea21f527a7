import gc
import importlib.metadata
import os
from pathlib import Path

# One thread a process, before anything starts one. The processes of pytest-xdist share the cores; and jaxlib's batched
# LAPACK calls wait on a thread of the pool for tasks of the same pool, so that as many calls at a time as there are
# threads come to a standstill. With one thread jaxlib does not split a batch. NPROC is the size of XLA's pool.
for _name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

# Compilation is most of the tests' time, and code that compiles in half of it is good enough for them. XLA does not
# start with a flag that it does not know, so only the version that is known to have these gets them.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    _QUICK = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK}".strip()

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)

_MAPS = Path("/proc/self/maps")
_MOST_MAPS = 30_000  # of the 65,530 that Linux allows a process


@pytest.fixture(autouse=True)
def _forget_programs():
    """Compiled programs take memory maps; a process that has used up its maps dies in the next compilation."""
    yield
    if _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()
        gc.collect()
