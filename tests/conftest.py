import gc
import os
from pathlib import Path

# One thread a process, before anything starts one: the processes of pytest-xdist share the cores, and batched solves
# of XLA that wait for each other's threads can come to a standstill on two of them.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

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
