# SPDX-License-Identifier: Apache-2.0
"""Files that are written as a whole or not at all. Standard library only."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Replaces the content of a file by ``text`` in UTF-8; makes the file where there is none.

    A file beside it is written, synced to the disk and renamed, so that a reader sees the old
    content or the new one, and a failure leaves the old one. A symbolic link stays: what it leads
    to is replaced. An existing file keeps its mode and, where the process may give files away, its
    owner. A device or a pipe is written as it is. Raises ``OSError``."""
    old = path.stat() if path.exists() else None
    if old is not None and not stat.S_ISREG(old.st_mode):
        with path.open("wb") as file:
            file.write(text.encode())
        return
    if old is not None:
        # As a write in place would: a file that may not be written is not replaced either.
        path.open("r+b").close()
    target = Path(os.path.realpath(path))
    made, descriptor = _made_beside(target)
    try:
        with open(descriptor, "wb") as file:
            if old is not None:
                with contextlib.suppress(OSError):
                    os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
        made.replace(target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _made_beside(target: Path) -> tuple[Path, int]:
    """A new file in the target's folder, under a name that no other writer has, and its
    descriptor."""
    for count in itertools.count(1):
        made = target.with_name(f"{target.name}.{os.getpid()}.{count}.new")
        with contextlib.suppress(FileExistsError):  # another thread's, or of a process that was killed
            return made, os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    raise AssertionError
