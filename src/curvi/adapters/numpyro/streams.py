"""NumPyro models of `Rows`: their columns stand for arrays that only the subsampled plate may index.

A model that gets `Rows`, or some of its columns, is run on one row at a time, as with any subsampled plate: the index
that its plate gives selects that row, whatever its value.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.primitives import Messenger

from curvi.model.rows.rows import Column, Rows


class Stream:
    """The rows of a model, and those that its plate selects at the moment."""

    def __init__(self, rows: Rows):
        self.rows = rows
        self.index: object = None  # what the plate gave last
        self.count = 1
        self.current: Mapping[str, Array] | None = None  # the columns of one row; None while shapes alone matter

    def selected(self, name: str) -> Array:
        if self.current is not None and self.count == 1:
            return jnp.asarray(self.current[name])[None]
        kind = self.rows.row[name]
        return jnp.zeros((self.count, *kind.shape), kind.dtype)


class StreamedColumn:
    """A column as the model sees it: `x[index]` inside of the plate, `numpyro.subsample(x, event_dim)`, its shape."""

    def __init__(self, stream: Stream, column: Column):
        self._stream, self._name = stream, column.name
        self.shape, self.dtype, self.ndim = column.shape, column.dtype, column.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, at):
        first, rest = (at[0], at[1:]) if isinstance(at, tuple) else (at, ())
        if first is not self._stream.index or first is None:
            return self._refuse()
        return self.selected()[(slice(None), *rest)]

    def selected(self) -> Array:
        return self._stream.selected(self._name)

    def _refuse(self, *_, **__):
        raise ValueError(
            f"column '{self._name}' of Rows is never read as a whole: index it by what the plate gives, "
            f"`with numpyro.plate('rows', {len(self)}, subsample_size=4096) as at: {self._name}[at]`"
        )

    __array__ = __jax_array__ = __iter__ = _refuse


class SelectRows(Messenger):
    """Runs a model of rows: notes the index of its subsampled plate, and selects rows where it subsamples columns."""

    def __init__(self, model: Callable, stream: Stream):
        self.stream = stream
        self.__name__ = getattr(model, "__name__", "model")
        super().__init__(model)

    def process_message(self, msg):
        if msg["type"] == "plate" and msg["args"][0] == self.stream.rows.num_rows and msg["value"] is None:
            msg["value"] = jnp.arange(msg["args"][1])
        elif msg["type"] == "subsample" and isinstance(msg["value"], StreamedColumn):
            msg["value"], msg["type"] = msg["value"].selected(), "selected rows"

    def postprocess_message(self, msg):
        if msg["type"] == "plate" and msg["args"][0] == self.stream.rows.num_rows:
            self.stream.index, self.stream.count = msg["value"], int(np.shape(msg["value"])[0])


def open_rows(model: Callable, args: tuple, kwargs: dict) -> tuple[Callable, tuple, dict, Stream | None]:
    """The model and its arguments with columns in place of `Rows`, which may be a dict or some of its columns; and
    their stream, None where there are no `Rows`.
    """
    is_rows = lambda node: isinstance(node, Rows | Column)  # noqa: E731
    found = [leaf for leaf in jax.tree.leaves((args, kwargs), is_leaf=is_rows) if is_rows(leaf)]
    sources = {id(rows): rows for leaf in found for rows in [leaf if isinstance(leaf, Rows) else leaf.rows]}
    if not sources:
        return model, args, kwargs, None
    if len(sources) > 1:
        raise ValueError(
            "the arguments of the model have several Rows; a model takes one, whose rows its plate selects"
        )
    stream = Stream(next(iter(sources.values())))

    def stand_in(node):
        if isinstance(node, Rows):
            return {name: StreamedColumn(stream, node[name]) for name in node.columns}
        return StreamedColumn(stream, node) if isinstance(node, Column) else node

    args, kwargs = jax.tree.map(stand_in, (args, kwargs), is_leaf=is_rows)
    return SelectRows(model, stream), args, kwargs, stream
