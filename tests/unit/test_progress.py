"""Progress: what it says, where it says it, how often, and what it costs."""

import io
import os
import pty
import re
import subprocess
import sys
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.record import progress
from curvi.record.counts import CallCounts
from curvi.record.progress import Reporter, open_progress

COUNTS = CallCounts(1000, 200, 34)
ROW = {"elbo": -1.0, "elbo_se": 0.01, "remaining_gain": 1.0, "radius": 1.0, "num_draws": 64}
TARGET = curvi.Target(lambda theta: -jnp.sum(jnp.cosh(theta["x"] - 2.0)), {"x": jnp.zeros(3)})


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_report_says_elbo_gain_draws_radius_and_time_left():
    seen = []
    reporter = Reporter(100, seen.append, every=0.0)
    reporter.show(10, {"elbo": -12.345, "elbo_se": 0.01, "remaining_gain": np.inf}, COUNTS)
    time.sleep(0.05)
    reporter.show(20, {**ROW, "elbo": -12.3, "remaining_gain": 0.25, "radius": 0.5, "num_draws": 256}, COUNTS)
    first, second = (report.line() for report in seen)
    assert "step 10/100" in first and "gain left ?" in first and "left" not in first.split("?")[1]
    for words in ("ELBO -12.30 ± 0.01", "gain left 0.25 nats", "256 draws", "radius 0.5", "1,234 calls", "at most"):
        assert words in second
    # Eighty steps at the pace of the last ten.
    assert seen[1].seconds_left == pytest.approx(8 * 0.05, rel=0.5)


def test_a_report_says_which_pass_over_the_rows_it_is_and_what_is_left_of_it(monkeypatch):
    now, seen = [0.0], []
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    reporter = Reporter(100, seen.append, every=0.0)
    for seconds, passes in ((0.0, 1.0), (10.0, 2.25), (12.0, 2.5), (16.0, 3.0)):
        now[0] = seconds
        reporter.show(4, ROW, CallCounts(1000, 200, 34, passes))
    said = [report.line() for report in seen]
    assert said[0].endswith("1 pass  0 s") and said[3].endswith("3 passes  16 s")
    assert said[1].endswith("pass 3 at 25%  10 s, 6 s left of this pass")
    assert said[2].endswith("pass 3 at 50%  12 s, 4 s left of this pass")


def test_durations_are_short():
    assert [progress._duration(s) for s in (3.2, 75, 4000)] == ["3 s", "1:15 min", "1:06 h"]


def test_log_file_gets_lines_at_a_modest_rate(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    file = io.StringIO()
    with open_progress(True, 1000, 0.05, file=file) as display:
        for step in range(1, 1000):
            now[0] += 0.1
            display.show(step, ROW, COUNTS)
    lines = file.getvalue().splitlines()
    assert len(lines) == pytest.approx(100 / progress._LOG_SECONDS, abs=1)
    assert all("ELBO" in line and "\x1b" not in line and "\r" not in line for line in lines)


def test_short_fits_leave_no_line_in_a_log(capfd):
    curvi.fit(TARGET, key=jax.random.key(0))
    out = capfd.readouterr()
    assert out.out == "" and out.err == ""


def test_silence_and_display_give_the_same_bits():
    with_display = curvi.fit(TARGET, key=jax.random.key(0), progress=True)
    without = curvi.fit(TARGET, key=jax.random.key(0), progress=False)
    np.testing.assert_array_equal(with_display.q.params, without.q.params)


def test_terminal_is_redrawn_and_left_clean():
    code = """
import jax, jax.numpy as jnp, curvi
jax.config.update("jax_enable_x64", True)
target = curvi.Target(lambda theta: -jnp.sum(jnp.cosh(theta["x"] - 2.0)), {"x": jnp.zeros(3)})
curvi.fit(target, key=jax.random.key(0), method=curvi.methods.NaturalGradient(), num_steps=1500, tolerance=1e-9)
"""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment)
    os.close(theirs)
    chunks = []
    reader = threading.Thread(target=_drain, args=(ours, chunks))
    reader.start()
    assert process.wait(timeout=300) == 0
    reader.join()
    written = b"".join(chunks).decode()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    for words in ("curvi", "compiling", "ELBO", "nats", "draws", "radius", "at most"):
        assert words in plain
    assert written.rstrip().endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A\x1b[2K"))  # the line is erased, the cursor back


def _drain(descriptor, chunks):
    while True:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:  # the other end is closed
            return
        if not chunk:
            return
        chunks.append(chunk)


def test_showing_costs_less_than_five_percent():
    # Reports that are not drawn must be all but free; those that are come at most every _REDRAW_SECONDS, and the
    # display redraws itself four times a second.
    with open_progress(True, 10**6, 0.05, file=Terminal()) as display:
        display.every = np.inf
        skipped = _seconds(lambda at: display.show(at, ROW, COUNTS), 2000)
        display.every = 0.0
        drawn = _seconds(lambda at: display.show(at, ROW, COUNTS), 200)
    assert skipped < 2e-4
    assert drawn / progress._REDRAW_SECONDS < 0.04


def _seconds(function, repeats: int) -> float:
    began = time.process_time()
    for at in range(1, repeats + 1):
        function(at)
    return (time.process_time() - began) / repeats


def test_notebook_updates_one_output():
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (an extra: dev)")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (an extra: dev)")
    code = """
import jax, jax.numpy as jnp, curvi
target = curvi.Target(lambda theta: -jnp.sum(jnp.cosh(theta["x"] - 2.0)), {"x": jnp.zeros(3)})
fit = curvi.fit(target, key=jax.random.key(0), method=curvi.methods.NaturalGradient(), num_steps=1000, tolerance=1e-9)
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Jupyter's own machinery
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    # tqdm, which NumPyro imports, warns on standard error that there are no widgets.
    (output,) = (one for one in notebook.cells[0].outputs if one["output_type"] == "display_data")
    assert re.search(r"step \d+/1000  ELBO .* (gain left|last step promised) .* draws", output["data"]["text/plain"])
