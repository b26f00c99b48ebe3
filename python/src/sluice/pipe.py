# SPDX-License-Identifier: Apache-2.0
"""What a program of this package does when whoever reads its output goes first (``| head``)."""

from __future__ import annotations

import signal


def end_with_reader() -> None:
    """Ends this process at its next write to a pipe that nobody reads, without a word, as programs
    elsewhere do: Python ignores the signal and raises BrokenPipeError instead. What is started by
    ``exec`` inherits either. For entry points alone: a library leaves its process's signals be."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
