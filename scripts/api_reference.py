# SPDX-License-Identifier: Apache-2.0
"""Writes docs/api.md: the signatures and docstrings of the package's public names, read from the source
without importing it. ``api_reference.py --check`` writes nothing and exits with 1 where the file is not
what it would write."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "api.md"
SOURCE = ROOT / "python" / "src" / "sluice"
HEAD = """# Python API

Written by `python scripts/api_reference.py` from the docstrings; `tests/python` checks that it is up to date. What they
are for: [python.md](python.md), [quickstart.md](quickstart.md).
"""
# Modules in reading order, with the names that a program calls.
PUBLIC = {
    "capi": ("info", "plan", "explain", "variants", "version", "Info", "PlanInfo"),
    "gate": ("Gate",),
    "ops": ("gate_up", "down", "mlp", "norm_mlp", "gate_mul"),
    "nn": ("GatedMLP",),
    "patching": ("patch", "Patched"),
    "vllm/__init__": ("register",),
}


def doc(node: ast.AST) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "")


def code(text: str) -> str:
    """Docstrings are plain text with ``code`` between doubled ticks."""
    return text.replace("``", "`")


def signature(node: ast.FunctionDef, name: str) -> str:
    arguments = ast.unparse(node.args)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{name}({arguments}){result}"


def entry(node: ast.stmt) -> str:
    """One function or class, with its public methods."""
    if isinstance(node, ast.FunctionDef):
        return f"### `{signature(node, node.name)}`\n\n{code(doc(node))}\n"
    assert isinstance(node, ast.ClassDef)
    parts = [f"### class `{node.name}`\n\n{code(doc(node))}\n"]
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            if not member.target.id.startswith("_"):
                parts.append(f"- `{ast.unparse(member)}`")
        elif isinstance(member, ast.FunctionDef) and (
            member.name == "__init__" or not member.name.startswith("_")
        ):
            shown = node.name if member.name == "__init__" else f"{node.name}.{member.name}"
            text = code(doc(member))
            parts.append(f"- `{signature(member, shown)}`" + (f": {text}" if text else ""))
    return "\n".join(parts) + "\n"


def module(path: str, names: tuple[str, ...]) -> str:
    tree = ast.parse((SOURCE / f"{path}.py").read_text(encoding="utf-8"))
    nodes = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    title = "sluice." + path.removesuffix("/__init__").replace("/", ".")
    intro = doc(tree).replace("::\n", ":\n")
    entries = [entry(nodes[name]) for name in names]
    return "\n".join([f"## `{title}`\n", code(intro) + "\n", *entries])


def main() -> int:
    """Returns the exit status."""
    text = "\n".join([HEAD, *(module(path, names) for path, names in PUBLIC.items())])
    if "--check" not in sys.argv:
        FILE.write_text(text, encoding="utf-8")
        return 0
    if not FILE.is_file() or FILE.read_text(encoding="utf-8") != text:
        print(f"{FILE.relative_to(ROOT)} is not what scripts/api_reference.py writes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
