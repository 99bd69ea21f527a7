"""`import curvi`: how long it takes beyond what it stands on, and that it asks nobody."""

import subprocess
import sys

# Time of the processor, not of the clock: other processes share it.
SECONDS = """
import time
import jax, jax.numpy, numpyro
start = time.process_time()
import curvi
print(time.process_time() - start)
"""
# What opens a connection or looks up a name ends the process. The hook cannot be caught by what it stops.
ALONE = """
import os, sys
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"):
        os.write(2, f"{event} {arguments}".encode())
        os._exit(9)
sys.addaudithook(hook)
import curvi, curvi.pymc, curvi.bambi, curvi.numpyro, curvi.cli
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300)


def test_importing_takes_at_most_a_second_beyond_jax_and_numpyro():
    done = [run(SECONDS) for _ in range(3)]
    assert all(one.returncode == 0 for one in done), done[0].stderr
    assert min(float(one.stdout) for one in done) < 1.0


def test_importing_asks_no_other_machine():
    done = run(ALONE)
    assert done.returncode == 0, done.stderr
    asks = run(
        f"{ALONE}\nimport socket\ntry:\n    socket.create_connection(('localhost', 9))\nexcept Exception:\n    pass"
    )
    assert asks.returncode == 9 and "socket" in asks.stderr, "a connection would be seen"


def test_importing_leaves_the_slow_parts_for_later():
    """What only some fits need, or only those who show something."""
    late = ["scipy.stats", "matplotlib", "pandas", "arviz", "pymc", "bambi", "blackjax", "sklearn", "pyarrow", "stan"]
    done = run(f"import sys, curvi; print([name for name in {late} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
