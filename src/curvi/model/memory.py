"""What memory there is in all, and how many draws of a model fit into a share of it at a time.

Totals, not what is free at the moment: the same model on the same machine is always cut in the same way.
"""

import functools
import os
from pathlib import Path

import jax

from curvi.model.over_draws import widest_array

_SHARE = 0.75  # of the total, for a fit
_FOR_CHUNKS = 1 / 12  # of what a fit may take, for what is computed from a chunk of draws at a time
# Arrays as large as the widest of the model that a chunk of draws and their derivatives keep at a time, about.
TEMPORARIES = 8
_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@functools.cache
def host_bytes() -> int:
    """Memory of the host, or what its control group allows."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP:
        text = Path(path).read_text().strip() if Path(path).exists() else ""
        if text.isdigit():
            total = min(total, int(text))
    return total


@functools.cache
def device_bytes() -> int:
    """Memory of the device that JAX computes on by default."""
    device = jax.devices()[0]
    stats = None if device.platform == "cpu" else device.memory_stats()
    return int(stats["bytes_limit"]) if stats and "bytes_limit" in stats else host_bytes()


def default_budget() -> int:
    """Bytes that a fit may take on the device, and on the host, unless told otherwise."""
    return int(_SHARE * min(device_bytes(), host_bytes()))


def draws_at_once(target, size: int, itemsize: int, most: int, memory: int | None = None) -> int:
    """Draws of `size` numbers for which the model is computed at a time: a power of two, at most `most`."""
    each = TEMPORARIES * itemsize * max(widest_array(target), size)
    affordable = max(int(_FOR_CHUNKS * (default_budget() if memory is None else memory) / each), 1)
    return min(most, 1 << (affordable.bit_length() - 1))


def words(number: float) -> str:
    """A number of bytes for messages."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f} bytes"
