# SPDX-License-Identifier: Apache-2.0
"""Checks of the committed text: ``sources.py RULE`` from the repository's root; exit status 1 and a
line per finding where the rule is broken. ``sources.py list EXT...`` prints the files."""

from __future__ import annotations

import functools
import glob
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

CODE = {".cpp", ".hpp", ".h", ".c", ".cu", ".cuh", ".inc"}
SCRIPTS = {".py", ".sh", ".cmake"}

# Folder -> prefixes of what its files may include: includes point one way (ARCHITECTURE.md).
DIRECTIONS: list[tuple[str, tuple[str, ...]]] = [
    # CUTLASS's users have its headers, and the gate's formula stands once.
    ("include/sluice/cutlass/", ("sluice/", "math/", "cute/", "cutlass/")),
    ("include/sluice/", ("sluice/",)),
    ("src/math/", ("sluice/", "math/")),
    ("src/timing/", ("sluice/", "timing/")),
    ("src/files/", ("sluice/", "files/")),
    ("src/tune/", ("sluice/", "math/", "timing/", "files/", "core/c_convert.hpp", "tune/")),
    ("src/core/", ("sluice/", "math/", "core/")),
    ("src/cpu/", ("sluice/", "math/", "core/kernel.hpp", "cpu/", "hwy/")),
    ("src/cuda/ptx/", ("sluice/", "math/", "cuda/ptx/")),
    ("src/cuda/tile/", ("sluice/", "math/", "cuda/host/workspace.hpp", "cuda/ptx/", "cuda/tile/")),
    ("src/cuda/", ("sluice/", "math/", "core/kernel.hpp", "timing/", "cuda/")),
    ("harness/cuda/", ("sluice/", "math/", "cuda/ptx/", "cuda/cublaslt/api.hpp", "harness/")),
    ("harness/", ("sluice/", "math/", "timing/", "files/", "harness/")),
    ("cli/", ("sluice/", "harness/", "cli/")),
    ("examples/cutlass/", ("sluice/", "math/", "cutlass/")),
    ("examples/", ("sluice/",)),
    # The public API, as any program has it, and the table of operands.
    ("python/binding/", ("core/operands.inc",)),
    ("python/torch/", ("core/operands.inc", "binding/")),
    ("python/jax/", ("binding/",)),
]
# The doors to the backends, and what a C handle opens.
DOORS = {
    "src/core/recipes.cpp": ("cpu/", "cuda/"),
    "src/core/run.cpp": ("cuda/host/device.hpp",),
    "src/core/c_api.cpp": ("tune/c_scheduler.hpp",),
    "src/tune/bench.cpp": ("cuda/host/arena.hpp",),
    "harness/timer.cpp": ("cuda/host/stopwatch.hpp",),
}

# Guidance, in lines; half as much again is worth a warning.
SIZES = {".hpp": 250, ".h": 250, ".cpp": 350, ".c": 350, ".cuh": 500, ".cu": 500}


def files(*suffixes: str) -> list[str]:
    """Committed and new files that git does not ignore, with one of these suffixes if given."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = [n for n in listing.split("\0") if n and Path(n).is_file()]
    return sorted(n for n in names if not suffixes or Path(n).suffix in suffixes)


def includes_of(name: str, text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r'\s*#\s*include\s+"([^"]+)"', line):
            yield number, found.group(1)


def include_findings(name: str, text: str) -> Iterator[str]:
    allowed = next((p for folder, p in DIRECTIONS if name.startswith(folder)), None)
    if allowed is None:
        return
    for number, path in includes_of(name, text):
        if "/" not in path and not (Path(name).parent / path).is_file():
            yield f"{name}:{number}: {path} is not beside this file"
        elif "/" in path and not path.startswith(allowed + DOORS.get(name, ())):
            yield f"{name}:{number}: {path} points the wrong way; allowed: {', '.join(allowed)}"


def without_comments(text: str) -> str:
    """The text with comments blanked; keeps line breaks. String literals stay."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)

    def blank(found: re.Match[str]) -> str:
        piece = found.group(0)
        return re.sub(r"[^\n]", " ", piece) if piece.startswith("/") else piece

    return pattern.sub(blank, text)


# What comments may hold beside ASCII: the mathematics of the documentation.
COMMENT_SYMBOLS = set("·⊙ᵀ≥≤→²³√±×—–……'’“”µΣ∞≈")


def ascii_findings(name: str, text: str) -> Iterator[str]:
    if Path(name).suffix not in CODE:
        return
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        if bad := sorted({c for c in line if ord(c) > 126}):
            yield f"{name}:{number}: {' '.join(bad)} in code"
    for number, line in enumerate(text.splitlines(), 1):
        if bad := sorted({c for c in line if ord(c) > 126} - COMMENT_SYMBOLS):
            yield f"{name}:{number}: {' '.join(bad)} in a comment"


def licence_findings(name: str, text: str) -> Iterator[str]:
    if Path(name).suffix not in CODE | {".py"} or not text:
        return
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.splitlines()[:3]):
        yield f"{name}: no SPDX line at its top"


def path_findings(name: str, text: str) -> Iterator[str]:
    """Paths and names of the machine that the file was written on."""
    words = [re.escape(str(Path.cwd())) + "/", *(f"/{folder}/[a-z]" for folder in ("root", "work"))]
    host = socket.gethostname()
    if len(host) > 6:
        words.append(re.escape(host))
    pattern = re.compile(r"(?<![\w$}.-])(" + "|".join(words) + ")")
    for number, line in enumerate(text.splitlines(), 1):
        if found := pattern.search(line):
            yield f"{name}:{number}: {found.group(1)}"


def size_findings(name: str, text: str) -> Iterator[str]:
    limit = SIZES.get(Path(name).suffix)
    if limit is None:
        return
    if name.startswith("tests/"):
        limit = 400
    lines = text.count("\n")
    if lines > limit * 3 // 2:
        yield f"warning: {name}: {lines} lines, guidance {limit}"


def without_code(text: str) -> str:
    """Markdown without what stands between fences: no headings and no links."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)


def anchors(text: str) -> set[str]:
    """What a link may name of a document, as GitHub makes it of the headings."""
    out: set[str] = set()
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} (.+)$", without_code(text), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        same = seen.get(slug, 0)
        seen[slug] = same + 1
        out.add(f"{slug}-{same}" if same else slug)
    return out


NO_FILES = ("llama.cpp", "sluice/version.hpp")  # a project, and what CMake writes


@functools.cache
def sources() -> str:
    return "".join(f"/{name}\n" for name in files(*CODE))


def named_source_findings(name: str, text: str) -> Iterator[str]:
    """Sources that a comment names, whole or by the end of their path, and that are not there."""
    comments = "\n".join(re.findall(r"//.*", text))
    for path in sorted(set(re.findall(r"(?<![\w.*])[\w/-]+\.(?:cpp|hpp|cuh|cu)\b", comments))):
        if f"/{path.lstrip('/')}\n" not in sources() and not path.endswith(NO_FILES):
            yield f"{name}: no {path}"


def named_path_findings(name: str, text: str) -> Iterator[str]:
    """Paths below a folder of the repository that a document names in backticks, such as
    `src/{core,cuda}/*.cpp`, and that are not there."""
    for path in sorted(set(re.findall(r"`((?:src|include|tests|python|harness|cli|data|scripts|docs)/[^`\s]+)`", text))):
        stems = [path]
        while braces := re.search(r"{([^{}]+)}", stems[0]):
            stems = [s.replace(braces[0], word, 1) for s in stems for word in braces[1].split(",")]
        if not all(glob.glob(stem) for stem in stems):
            yield f"{name}: no {path}"


def link_findings(name: str, text: str) -> Iterator[str]:
    """Links of documents to files and headings that are not there; documents and sources that code
    names."""
    if Path(name).suffix in CODE and not name.startswith("tests/"):
        yield from named_source_findings(name, text)
    if Path(name).suffix != ".md":
        if Path(name).suffix in CODE | SCRIPTS and not name.startswith("tests/lint/"):
            for path in sorted(set(re.findall(r"(?<![\w/.])docs/[\w/]+\.md", text))):
                if not Path(path).is_file():
                    yield f"{name}: no {path}"
        return
    if name in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        yield from named_path_findings(name, text)
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        file = Path(name).parent / path if path else Path(name)
        if path and not file.exists():
            yield f"{name}: {target}: no such file"
        elif anchor and file.suffix == ".md":
            there = text if not path else file.read_text(encoding="utf-8")
            if anchor not in anchors(there):
                yield f"{name}: {target}: no such heading"


RULES: dict[str, Callable[[str, str], Iterator[str]]] = {
    "includes": include_findings,
    "ascii": ascii_findings,
    "licence": licence_findings,
    "paths": path_findings,
    "sizes": size_findings,
    "links": link_findings,
}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["list"]:
        print("\n".join(files(*("." + e for e in arguments[1:]))))
        return 0
    if len(arguments) != 1 or arguments[0] not in RULES:
        print(__doc__, file=sys.stderr)
        return 2
    rule = RULES[arguments[0]]
    findings: list[str] = []
    count = 0
    for name in files():
        try:
            text = Path(name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary file has no text to check
        count += 1
        findings += rule(name, text)
    print("\n".join(findings + [f"{arguments[0]}: {count} files, {len(findings)} findings"]))
    if count == 0:
        return 1
    return 1 if findings and arguments[0] != "sizes" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
