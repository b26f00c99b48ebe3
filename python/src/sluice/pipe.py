# SPDX-License-Identifier: Apache-2.0
"""What a program of this package does when its output is not taken: by a reader that goes first
(``| head``), by a full device."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable


def end_with_reader() -> None:
    """Ends this process at its next write to a pipe that nobody reads, without a word, as programs
    elsewhere do: Python ignores the signal and raises BrokenPipeError instead. What is started by
    ``exec`` inherits either. For entry points alone: a library leaves its process's signals be."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def print_lines(program: str, lines: Iterable[str]) -> bool:
    """Prints each line as it comes; False, with one line on standard error, where standard output
    does not take them."""
    for line in lines:
        try:
            print(line, flush=True)
        except OSError as error:
            print(f"{program}: standard output: {error.strerror}", file=sys.stderr)
            # What is left in the buffer would be tried again, and fail, at the interpreter's end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return False
    return True
