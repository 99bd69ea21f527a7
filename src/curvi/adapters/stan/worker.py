"""The process in which a Stan program runs: `python stan_worker.py MODEL_NAME`, with communication through pipes.

Stan's differentiation keeps its tape in the thread that loaded the program, and crashes in any other; JAX calls back
from its own threads. Here the program is loaded and called by one thread. This file imports neither JAX nor curvi,
so that the process starts quickly.
"""

import os
import pickle
import sys


def main() -> None:
    # Programs may print: redirect their output to the error stream, so that only replies use the pipe.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from httpstan.models import import_services_extension_module  # pyright: ignore[reportMissingImports]

    module = import_services_extension_module(sys.argv[1])
    requests = sys.stdin.buffer
    data = pickle.load(requests)
    while True:
        try:
            name, rows, options = pickle.load(requests)
        except EOFError:
            return
        pickle.dump([_call(getattr(module, name), data, row, options) for row in rows], replies)
        replies.flush()


def _call(function, data, row, options):
    """A result, or the exception: ValueError where Stan rejects a point, RuntimeError for arguments of a wrong size."""
    try:
        return function(data, row, *options)
    except (ValueError, RuntimeError) as error:
        return error


if __name__ == "__main__":
    main()
