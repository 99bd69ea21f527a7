import gc
from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)

_MAPS = Path("/proc/self/maps")
_MOST_MAPS = 30_000  # of the 65,530 that Linux allows a process


@pytest.fixture(autouse=True)
def _forget_programs():
    """Every compiled program takes memory maps, and a process that has used up its maps dies in the next compilation."""
    yield
    if _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()
        gc.collect()
