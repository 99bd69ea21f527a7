"""What a fit on growing rows derives from the problem and its state: the sample, its objective, the pass under way."""

import dataclasses
import time
from collections.abc import Iterator

import equinox as eqx
import jax
import numpy as np

from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.rows.passes import DRAWS, ChunkProgram, RowSums, found_hessian, halves_apart, pass_noise
from curvi.family import Family
from curvi.family.path import ExpandablePath
from curvi.methods.base import Problem
from curvi.methods.growing_draws.method import GrowingDraws, objective_at
from curvi.methods.growing_draws.streams import FOR_PASSES, FOR_ROWS
from curvi.methods.growing_rows.state import RowsState
from curvi.model.minibatch import MinibatchTarget
from curvi.model.row_sample import RowSample, block_rows
from curvi.model.rows.reading import Chunk
from curvi.model.rows.rows import Rows
from curvi.model.rows.source import RowsError
from curvi.record.counts import CallCounts

_FEWEST, _MOST, _SHARE = 2**14, 2**17, 1 / 16  # rows of a sample, and as a share of all
_A_LATENT = 64  # rows of a sample per latent, so that its Hessian is right to an eighth in every direction
_SAMPLE_BYTES = 2**28
_KEPT = 4  # moves per latent that tell of the Hessian of the difference
_NO_BITS = np.zeros(0, np.uint64)
_ADVANCE_SECONDS = 0.5  # of a pass between two looks at limits, checkpoints and interrupts


def sample_size(rows: Rows, num_latents: int, wanted: int | None) -> int:
    """The number of rows in memory; all of them where they are few."""
    if wanted is not None:
        return min(wanted, rows.num_rows)
    size = max(_FEWEST, _A_LATENT * num_latents, min(_MOST, int(_SHARE * rows.num_rows)))
    size = min(size, max(_SAMPLE_BYTES // max(rows.row_bytes, 1), 1))
    return rows.num_rows if rows.num_rows <= 2 * size and 2 * size * rows.row_bytes <= _SAMPLE_BYTES else size


@dataclasses.dataclass(frozen=True)
class Sample:
    """The rows in memory, by column, and what identifies all rows; empty where no pass was needed to choose them."""

    target: RowSample
    columns: dict[str, np.ndarray]
    fingerprint: np.ndarray
    num_passes: int


class Work:
    """A problem with `Rows`, as the loop sees it at one state."""

    def __init__(self, draws: GrowingDraws, wanted: int | None, problem: Problem, key, state: RowsState | None = None):
        target = problem.target
        assert isinstance(target, MinibatchTarget)
        self.draws, self.problem, self.key, self.target = draws, problem, key, target
        self.rows = problem.once("rows", target.rows)
        kept = state is not None and state.sample
        self.sample = problem.once("sample", lambda: self._of(kept, _NO_BITS) if kept else self._chosen(wanted))
        self.whole = self.sample.target.scale.item() == 1
        self._open: tuple[tuple[int, int], Iterator[Chunk]] | None = None  # pass and position of a reader

    def _chosen(self, wanted: int | None) -> Sample:
        rows, size = self.rows, sample_size(self.rows, self.problem.q.noise_size, wanted)
        words = np.asarray(jax.random.key_data(self.key)).astype(np.uint32)
        rng = np.random.default_rng([*words, FOR_ROWS])
        chosen = np.arange(size) if size == rows.num_rows else np.sort(rng.choice(rows.num_rows, size, replace=False))
        columns, fingerprint = rows.take(chosen)
        return self._of(columns, fingerprint)

    def _of(self, columns: dict[str, np.ndarray], fingerprint: np.ndarray) -> Sample:
        sample = RowSample.of(self.target, self.target.as_rows(columns))
        return Sample(sample, columns, fingerprint, int(fingerprint.size > 0))

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """What a state must keep of the sample: nothing where the same rows can be read again by their index."""
        return {} if self.rows.source.ordered else self.sample.columns

    def check(self, state: RowsState) -> None:
        """Raise RowsError where a state belongs to other rows."""
        if state.num_rows != self.rows.num_rows:
            raise RowsError(f"the fit was begun on {state.num_rows:,} rows; this source has {self.rows.num_rows:,}")
        self._check_bits(state.fingerprint, self.sample.fingerprint)

    def _check_bits(self, before: np.ndarray, now: np.ndarray) -> None:
        if before.size and now.size and np.any(before != now):
            names = ", ".join(name for name, a, b in zip(self.rows.columns, before, now) if a != b)
            raise RowsError(
                f"rows have changed between two passes, in {names}; restore the source, or begin a new fit with "
                "family=error.fit.q"
            )

    # -- on the sample ------------------------------------------------------------------------------------------------

    def inner(self, state: RowsState) -> tuple[Problem, float]:
        """The problem on the sample, and the constant by which its ln p is too low."""

        def make() -> tuple[Problem, float]:
            target, offset = self.sample.target, 0.0
            if state.reference.size:
                target, offset = target.about(self.reference(state))
            own = self.problem
            return Problem(target, own.q, own.num_starts, own.families, own.learns_centering, memory=own.memory), offset

        return self.problem.once("inner", make, state.reference)

    def reference(self, state: RowsState) -> dict[str, np.ndarray]:
        """The point that all rows are relative to, as a dict of latents."""
        shapes = [latent.shape for latent in self.target.latents]
        ends = np.cumsum([int(np.prod(shape, dtype=int)) for shape in shapes])
        parts = np.split(state.reference, ends[:-1])
        return {
            latent.name: part.reshape(latent.shape).astype(latent.dtype)
            for latent, part in zip(self.target.latents, parts)
        }

    def centre(self, q: Family) -> np.ndarray:
        """The point in the middle of q, as one vector."""
        theta = _centre(q)
        return np.concatenate([np.asarray(theta[one.name], np.float64).ravel() for one in self.target.latents])

    def objective(self, state: RowsState) -> Objective:
        """The objective on the sample."""
        return objective_at(self.draws, self.inner(state)[0], state.growing, self.key)

    # -- passes -------------------------------------------------------------------------------------------------------

    def read_on(self, state: RowsState, objective: Objective) -> tuple[RowsState, CallCounts]:
        """The state some chunks further in the pass at its q, and the evaluations spent; at the end of the pass the
        sums become a difference.
        """
        if state.sums is None:
            state = self._begun(state, objective)
        sums = state.sums
        assert sums is not None
        program, c, noise = self._program(objective), *self._inputs(state, objective)
        chunks, sums = self._reader(state.num_passes, sums)
        self._open = None  # interrupted below, it is further than the state knows
        reference, began = self.reference(state), time.monotonic()
        first, pending = sums.num_rows, None
        while True:
            chunk = next(chunks, None)
            # The next chunk is read and sent while the device works on the last one.
            found = None if chunk is None else (chunk.num_rows, program(c, noise, reference, chunk), chunk.fingerprint)
            sums = sums if pending is None else sums.plus(*pending)
            pending = found
            if pending is None or time.monotonic() - began > _ADVANCE_SECONDS:
                break
        if pending is not None:
            sums = sums.plus(*pending)
        passed = CallCounts(passes=_share(sums.num_rows, state.num_rows) - _share(first, state.num_rows))
        self._open = (state.num_passes, sums.num_rows), chunks
        if pending is not None:
            return state.but(sums=sums), passed
        done = self._ended(state, sums, objective, c, noise, program)
        return done, passed.plus(DRAWS, DRAWS)

    def _begun(self, state: RowsState, objective: Objective) -> RowsState:
        size = objective.path.coordinates(state.growing.params).size
        sums = RowSums.none(size, len(self.rows.columns), objective.dimension)
        state = state.but(sums=sums, num_passes=state.num_passes + 1)
        if state.stays:
            return state.but(index=state.growing.index)
        return state.but(params=state.growing.params, index=state.growing.index, num_here=0)

    def _ended(self, state: RowsState, sums: RowSums, objective: Objective, c, noise, program) -> RowsState:
        if not self.rows.source.in_memory:
            self._check_bits(state.fingerprint, sums.fingerprint)
            state = state.but(fingerprint=sums.fingerprint)
        own = self._sample_sums(state, c, noise, program)
        scale, offset = float(self.sample.target.scale), self.inner(state)[1]
        values = sums.values.mean(1) + sums.constant - (scale * own.values.mean(1) + offset)
        slopes = sums.slopes - scale * own.slopes
        path = objective.path
        if isinstance(path, ExpandablePath):
            factor = path.scale_matrix(state.growing.params)
            if len(state.moves):
                # A control variate made of earlier passes alone, so that it adds no bias.
                excess, gradients = path.part_excess(found_hessian(state.moves, state.bends, factor), noise, c)
                values, slopes = values - excess, slopes - gradients
            moves, bends = halves_apart(noise @ factor.T), halves_apart(sums.draw_slopes - scale * own.draw_slopes)
            keep = slice(-_KEPT * path.size, None)
            moves = np.concatenate([state.moves.reshape(-1, path.size), moves])[keep]
            bends = np.concatenate([state.bends.reshape(-1, path.size), bends])[keep]
            state = state.but(moves=moves, bends=bends)
        if state.num_here:
            values, slopes = values + state.values, slopes + state.slopes
        return state.but(sums=None, values=values, slopes=slopes, num_here=state.num_here + 1)

    def _sample_sums(self, state: RowsState, c, noise, program: ChunkProgram) -> RowSums:
        """The sums of a pass over the sample alone."""
        columns, size = self.sample.columns, program.size
        count, none = len(next(iter(columns.values()))), np.zeros(len(columns), np.uint64)
        sums = RowSums.none(c.size, len(columns), noise.shape[-1])
        for at in range(0, count, size):
            chunk = Chunk({name: column[at : at + size] for name, column in columns.items()}, none)
            sums = sums.plus(chunk.num_rows, program(c, noise, self.reference(state), chunk), none)
        return sums

    def _inputs(self, state: RowsState, objective: Objective) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates and the noise of the current pass."""
        rng = objective.source.generator(FOR_PASSES, state.num_passes)
        return objective.path.coordinates(state.growing.params), pass_noise(rng, objective.dimension)

    def _program(self, objective: Objective) -> ChunkProgram:
        inputs = objective.sweeps.structure, objective.sweeps.arrays
        make = lambda: ChunkProgram(self.target, inputs, self.rows.chunk_rows, block_rows(self.target))  # noqa: E731
        return self.problem.once("program", make, *inputs)

    def _reader(self, index: int, sums: RowSums) -> tuple[Iterator[Chunk], RowSums]:
        """The chunks that follow those in the sums of a pass. A source without an order can only begin anew."""
        if self._open is not None and self._open[0] == (index, sums.num_rows):
            return self._open[1], sums
        if not self.rows.source.ordered:
            sums = RowSums.none(sums.slopes.shape[1], len(sums.fingerprint), sums.draw_slopes.shape[-1])
        return self.rows.chunks(sums.num_rows), sums


def _share(num_rows: int, of: int) -> float:
    """The share of a pass as a multiple of 2^-20: the differences of such shares add up to one exactly."""
    return round(num_rows / of * 2**20) / 2**20


@eqx.filter_jit
def _centre(q: Family):
    return q.to_model(q.from_normal(jax.numpy.zeros(q.noise_size, q.params.dtype)))[0]
