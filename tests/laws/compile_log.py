"""What JAX compiles, by its own log."""

import contextlib
import logging
from collections.abc import Iterator

import jax


class _Names(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.names: list[str] = []

    def emit(self, record):
        head = record.getMessage().split(" with ")[0]
        if head.startswith("Compiling "):
            self.names.append(head.removeprefix("Compiling "))


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Names of the programs that are compiled inside the block, in order."""
    handler, logger = _Names(), logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        with jax.log_compiles():
            yield handler.names
    finally:
        logger.removeHandler(handler)
