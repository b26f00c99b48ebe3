# SPDX-License-Identifier: Apache-2.0
"""What Sluice says of the gated MLP classes of a host: data/serving/*.json, and docs/serving.md of
them.

    serving_facts.py read FOLDER HOST VERSION    reads a folder of Python sources (of an unpacked
                                                 wheel) into data/serving/HOST-VERSION.json
    serving_facts.py tables [--check]            writes the tables of docs/serving.md, or compares

A class is in the facts where its ``forward`` has the form of a gated MLP, or where its attributes
call themselves gate, up and down. Each spelling of a ``forward`` stands once, without the author's
names for variables and cut after what it is refused for; ``tests/python`` holds ``sluice.form`` to
the verdicts.
Standard library only.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "data" / "serving"
DOCUMENT = ROOT / "docs" / "serving.md"
sys.path.insert(0, str(ROOT / "python" / "src"))

from sluice import form  # noqa: E402
from sluice.replace_file import replace_file  # noqa: E402

# The one projection of gate and up, as vLLM and SGLang build it: tells a gated MLP, whose
# activation multiplies, from two layers with an activation between them.
MERGED = ("MergedColumnParallelLinear",)
SERVED = "served"
# Hosts whose plug-in asks at each call whether a form's condition holds.
CONDITIONAL = ("sglang",)


def verdict(spelling: str, host: str) -> str:
    """``served``, ``served where CONDITION``, or why not."""
    found = form.form_of_source(spelling, conditional=host in CONDITIONAL)
    if not isinstance(found, form.Form):
        return found
    return f"{SERVED} where {found.condition}" if found.condition else SERVED


def is_served(verdict_: str) -> bool:
    return verdict_.split(" ")[0] == SERVED


def shortest(spelling: str, host: str) -> str:
    """The first statements, as far as the verdict needs them."""
    function = ast.parse(spelling).body[0]
    assert isinstance(function, ast.FunctionDef)
    whole, body = verdict(spelling, host), function.body
    for count in range(1, len(body)):
        function.body = body[:count]
        if verdict(ast.unparse(function), host) == whole:
            break
    else:
        function.body = body
    return ast.unparse(function)


def built_merged(kind: ast.ClassDef, name: str) -> bool:
    """Does the class assign a merged projection to this attribute?"""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) in MERGED
        and ast.unparse(node.targets[0]) == f"self.{name}"
        for node in ast.walk(kind)
    )


def attributes(function: ast.FunctionDef) -> set[str]:
    return {
        node.attr for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }  # fmt: skip


def classes(text: str, host: str) -> Iterator[tuple[str, str]]:
    """Name and spelling of the classes that belong in the facts."""
    for kind in ast.walk(ast.parse(text)):
        if not isinstance(kind, ast.ClassDef):
            continue
        for function in kind.body:
            if isinstance(function, ast.FunctionDef) and function.name == "forward":
                source = ast.unparse(function)
                found = form.form_of_source(source, conditional=host in CONDITIONAL)
                named = form.looks_gated(attributes(function))
                if isinstance(found, form.Form) and found.takes_both:
                    named = named or built_merged(kind, found.gate)
                elif isinstance(found, form.Form):
                    named = True
                if named:
                    yield kind.name, shortest(form.spelling(source), host)


def read(folder: Path, host: str, version: str) -> dict[str, Any]:
    spellings: dict[str, int] = {}
    found = []
    for path in sorted(folder.rglob("*.py")):
        if path.name.startswith("modular_"):  # what transformers writes its modelling files from
            continue
        text = path.read_text(encoding="utf-8-sig")
        if "def forward" in text:
            for name, spelling in classes(text, host):
                number = spellings.setdefault(spelling, len(spellings))
                found.append([name, str(path.relative_to(folder)), number])
    return {
        "host": host, "version": version,
        "spellings": [{"forward": text, "verdict": verdict(text, host)} for text in spellings],
        "classes": found,
    }  # fmt: skip


def written(facts: dict[str, Any]) -> str:
    """JSON with a line for each spelling and class."""
    lines = [
        f'"{key}": [\n' + ",\n".join(json.dumps(item) for item in value) + "\n]"
        if isinstance(value, list) else f'"{key}": {json.dumps(value)}'
        for key, value in facts.items()
    ]  # fmt: skip
    return "{\n" + ",\n".join(lines) + "\n}\n"


def all_facts() -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FACTS.glob("*.json"))]


def _cell(text: str) -> str:
    """Without what Markdown takes for a column or a link."""
    return text.replace("|", "\\|").replace("](", "] (")


def summary(facts: list[dict[str, Any]]) -> str:
    lines = ["| host | gated MLP classes | their forward is served | of them under a condition "
             "| spellings served | left |", "|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    for host in facts:
        spellings = [item["verdict"] for item in host["spellings"]]
        verdicts = [spellings[number] for _, _, number in host["classes"]]
        served = [text for text in verdicts if is_served(text)]
        conditional = len(served) - served.count(SERVED)
        count = sum(is_served(text) for text in spellings)
        lines.append(f"| {host['host']} {host['version']} | {len(verdicts)} | {len(served)} "
                     f"| {conditional} | {count} | {len(verdicts) - len(served)} |")  # fmt: skip
    return "\n".join(lines)


def left(host: dict[str, Any]) -> str:
    """A line for each reason, the commonest first."""
    names: dict[str, list[str]] = {}
    for name, _, number in host["classes"]:
        reason = host["spellings"][number]["verdict"]
        if not is_served(reason):
            names.setdefault(reason, []).append(name)
    counts = Counter({reason: len(kinds) for reason, kinds in names.items()})
    lines = ["| reason | classes |", "|---|---|"]
    for reason, _ in counts.most_common():
        kinds = ", ".join(f"`{name}`" for name in sorted(set(names[reason])))
        lines.append(f"| `{_cell(reason)}` | {kinds} |")
    return "\n".join(lines)


def with_tables(document: str, facts: list[dict[str, Any]]) -> str:
    tables = {"summary": summary(facts)}
    tables |= {f"{host['host']}-{host['version']}": left(host) for host in facts}
    for name, table in tables.items():
        begin, end = f"<!-- serving {name} -->\n", f"\n<!-- /serving {name} -->"
        before, _, rest = document.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{DOCUMENT.name}: no place for {name}")
        document = f"{before}{begin}\n{table}\n{end}{after}"
    return document


def main(arguments: list[str]) -> int:
    match arguments:
        case ["read", folder, host, version]:
            facts = read(Path(folder), host, version)
            FACTS.mkdir(parents=True, exist_ok=True)
            replace_file(FACTS / f"{host}-{version}.json", written(facts))
            verdicts = [facts["spellings"][number]["verdict"] for _, _, number in facts["classes"]]
            print(f"{host} {version}: {len(verdicts)} classes, "
                  f"{sum(map(is_served, verdicts))} served")  # fmt: skip
        case ["tables", *rest] if rest in ([], ["--check"]):
            document = DOCUMENT.read_text(encoding="utf-8")
            current = with_tables(document, all_facts())
            if rest and current != document:
                print(f"{DOCUMENT.name} is stale: serving_facts.py tables", file=sys.stderr)
                return 1
            if not rest:
                replace_file(DOCUMENT, current)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
