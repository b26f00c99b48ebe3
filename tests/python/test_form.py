# SPDX-License-Identifier: Apache-2.0
"""``sluice.form``: what it reads of a ``forward``, and the committed verdicts on the classes of
transformers, vLLM and SGLang."""

import functools
import importlib.util
import json
import tempfile
import unittest
from pathlib import Path
from types import ModuleType
from unittest import mock

from sluice.form import Call, Form, form_of, form_of_source, looks_gated, spelling

ROOT = Path(__file__).parents[2]
FACTS = sorted((ROOT / "data" / "serving").glob("*.json"))
SEPARATE = Form("gate_proj", "up_proj", "down_proj", "act_fn", "x")


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("facts", ROOT / "scripts" / "serving_facts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(*lines: str, head: str = "self, x") -> Form | str:
    return form_of_source(f"def forward({head}):\n " + "\n ".join(lines))


class Reads(unittest.TestCase):
    def test_spellings_of_one_form(self) -> None:
        for lines in (
            ["return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"],
            ['"""Text."""', "u = self.up_proj(x)", "g: Tensor = self.act_fn(self.gate_proj(x))",
             "x = u * g", "x = self.down_proj(x)", "return x"],
            ["g, u = self.gate_proj(x), self.up_proj(x)", "return self.down_proj(self.act_fn(g) * u)"],
            ["if self.tp_size == 1 and x.shape[0] == 0:", "  return x",
             "return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"],
            ["h = self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
             "if h.dtype != self.down_proj.weight.dtype:", "  h = h.to(self.down_proj.weight.dtype)",
             "return self.down_proj(h)"],
        ):  # fmt: skip
            with self.subTest(lines):
                self.assertEqual(read(*lines), SEPARATE)

    def test_merged_projections_by_their_halves(self) -> None:
        for split in ("{}.chunk(2, dim=-1)", "torch.chunk({}, 2, -1)"):
            first = f"a, b = {split.format('self.both(x)')}"
            form = read(first, "return self.down(self.act(a) * b)")
            self.assertEqual(form, Form("both", "both", "down", "act", "x"))
            form = read(first, "return self.down(a * self.act(b))")
            self.assertEqual(form, Form("both", "both", "down", "act", "x", up_first=True))

    def test_projections_that_return_tuples(self) -> None:
        merged = Form("both", "both", "down", "act", "v", takes_both=True, tuples=True)
        for lines in (
            ["g, _ = self.both(v)", "v = self.act(g)", "v, _ = self.down(v)", "return v"],
            ["return self.down(self.act(self.both(v)[0]))[0]"],
            ["v, _ = self.both(v)", "v = maybe_fused_act_quant(self.act, v, self.down)",
             "v, _ = self.down(v)", "return v"],
        ):  # fmt: skip
            self.assertEqual(read(*lines, head="self, v, forward_batch=None"), merged)
        reason = read("g, _ = self.both(x)", "return self.down(self.act(g))")
        self.assertEqual(reason, "some projections return tuples, others do not")

    def test_functions_as_activations_and_dropout(self) -> None:
        for call, gate in (("F.silu({})", "silu"), ("nn.functional.gelu({})", "gelu_erf"),
                           ("F.gelu({}, approximate='tanh')", "gelu_tanh")):  # fmt: skip
            form = read(f"return self.drop(self.w2({call.format('self.w1(x)')} * self.w3(x)))")
            expected = Form("w1", "w3", "w2", gate, "x", is_function=True, dropouts=("drop",))
            self.assertEqual(form, expected)

    def test_everything_else_is_refused_by_its_name(self) -> None:
        plain = "self.down(self.act(self.gate(x)) * self.up(x))"
        for expected, lines in (
            ("returns self.down(...) * self.scale", [f"return {plain} * self.scale"]),
            ("returns x + self.down(...)", [f"return x + {plain}"]),
            ("returns self.down(...) + self.lora(...)", [f"return {plain} + self.lora(x)"]),
            ("act reads self.gate(...).clamp(...)",
             ["return self.down(self.act(self.gate(x).clamp(max=7)) * self.up(x))"]),
            ("act's result is multiplied by self.up(...) + 1",
             ["return self.down(self.act(self.gate(x)) * (self.up(x) + 1))"]),
            ("gate reads self.norm(...)",
             ["n = self.norm(x)", "return self.down(self.act(self.gate(n)) * self.up(x))"]),
            ("down reads self.norm(...) of self.act(...) * self.up(...)",
             ["return self.down(self.norm(self.act(self.gate(x)) * self.up(x)))"]),
            ("down reads self.gate(...) * self.up(...)", ["return self.down(self.gate(x) * self.up(x))"]),
            ("down reads other(...)", ["return self.down(other(self.both(x)))"]),
            ("down reads self.act(...) + self.up(...)",
             ["return self.down(self.act(self.gate(x)) + self.up(x))"]),
            ("down reads F.tanh(...) * self.up(...)",
             ["return self.down(F.tanh(self.gate(x)) * self.up(x))"]),
            ("act reads self.both(...).chunk(...)[0]",
             ["g, u = self.both(x).chunk(2, dim=1)", "return self.down(self.act(g) * u)"]),
            ("branches: if self.training", ["if self.training:", f"  return {plain}", "return x"]),
            ("branches: if x.numel(...) == 0", ["if x.numel() == 0:", "  return self.up(x)"]),
            ("has a statement of its own: for i in range(2):", ["for i in range(2):", "  x = 2 * x"]),
            ("changes x in place", ["x *= 2", f"return {plain}"]),
            ("writes to self.seen", ["self.seen = x", f"return {plain}"]),
            ("passes skip to down", ["return self.down(x, skip=True)"]),
            ("casts to the type of norm", [f"return {plain.replace('(x)', '(x.to(self.norm.weight.dtype))')}"]),
            ("returns nothing", ["x = self.down(x)"]),
        ):  # fmt: skip
            with self.subTest(expected):
                self.assertEqual(read(*lines), expected)
        self.assertEqual(read(f"return {plain}", head="self, x, index"),
                         "takes more than x: (self, x, index)")  # fmt: skip
        decorated = f"@checkpointed(1)\ndef forward(self, x):\n return {plain}"
        self.assertEqual(form_of_source(decorated), "decorated by checkpointed(...)")

    def test_a_reason_stays_short_where_variables_are_shared(self) -> None:
        doubled = ["x = self.a(x) + self.b(x) * x"] * 60
        self.assertRegex(read(*doubled, "return x"), r"^returns self\.a\(\.\.\.\) \+ ")

    def test_what_has_no_source_or_is_wrapped(self) -> None:
        class Plain:
            def forward(self, x: object) -> object:
                return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

        self.assertEqual(form_of(Plain), SEPARATE)
        wrapper = functools.wraps(Plain.forward)(lambda self, x: 2 * x)
        self.assertEqual(form_of(type("Wrapped", (), {"forward": wrapper})), "forward is wrapped")
        self.assertEqual(form_of(type("Built", (), {"forward": len})), "forward has no source to read")
        self.assertEqual(form_of(type("Lambda", (), {"forward": lambda self, x: x})),
                         "forward is no function")  # fmt: skip

    def test_names(self) -> None:
        self.assertTrue(looks_gated(["gate_up_proj", "down_proj"]))
        self.assertFalse(looks_gated(["upsample", "gate", "down"]))
        self.assertEqual(spelling("def forward(self, x: int) -> int:\n 'doc'\n y, _ = x\n return y"),
                         spelling("def forward(self, a):\n b, _ = a\n return b"))  # fmt: skip


ENGINE = """
limit = None
def forward(self, x, batch=None, *, skip=False):
    if limit is not None:
        x = x.clamp(limit)
    if self.pair.can_run(x, self.both):
        h = self.pair(x, self.both)
    else:
        h, _ = self.both(x)
        if batch is not None and batch.is_decode():
            h = self.quant.forward_decode(h, self.act, self.down)
        else:
            h = self.act(h)
    y, _ = self.down(h, batch=batch, skip_all_reduce=skip)
    return y
"""


class Conditions(unittest.TestCase):
    """Branches, as SGLang has them: a form under a condition, for callers that ask for it."""

    def test_the_condition_is_that_of_the_paths_with_the_form(self) -> None:
        source = ENGINE.split("None\n", 1)[1]
        form = form_of_source(source, conditional=True)
        self.assertEqual(form, Form(
            "both", "both", "down", "act", "x", takes_both=True, tuples=True,
            condition="not (limit is not None) and not (self.pair.can_run(x, self.both))",
            passes=(("batch", "batch"), ("skip_all_reduce", "skip")),
        ))  # fmt: skip
        self.assertEqual(form_of_source(source), "branches: if limit is not None")

    def test_what_a_call_passes_and_when_it_has_the_form(self) -> None:
        with tempfile.TemporaryDirectory() as folder:  # a function's source is read from a file
            path = Path(folder, "engine.py")
            path.write_text(ENGINE, encoding="utf-8")
            spec = importlib.util.spec_from_file_location("engine", path)
            engine = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(engine)
            form = form_of(type("A", (), {"forward": engine.forward}), conditional=True)
            call = Call(engine.forward, form)
        mlp = mock.Mock()
        mlp.pair.can_run.return_value = False
        self.assertEqual(call(mlp, 7), (7, True, {"batch": None, "skip_all_reduce": False}))
        self.assertEqual(call(mlp, x=7, batch=3, skip=True),
                         (7, True, {"batch": 3, "skip_all_reduce": True}))  # fmt: skip
        mlp.pair.can_run.return_value = True
        self.assertFalse(call(mlp, 7)[1])
        mlp.pair.can_run.return_value = False
        engine.limit = 1
        self.assertFalse(call(mlp, 7)[1])
        for wrong in (lambda: call(mlp), lambda: call(mlp, 7, 3, True), lambda: call(mlp, 7, other=1)):
            self.assertRaises(TypeError, wrong)

    def test_branches_that_are_refused(self) -> None:
        def read(*lines: str) -> Form | str:
            return form_of_source("def forward(self, x, y=None):\n " + "\n ".join(lines), conditional=True)

        plain = "return self.down(self.act(self.both(x)))"
        self.assertEqual(read("h = self.both(x)", "if h.any():", "  h = 2 * h", "return self.down(self.act(h))"),
                         "branches: if h.any(...)")  # fmt: skip
        self.assertEqual(read("if self.a:", f"  {plain}", "return x").condition, "(self.a)")
        self.assertEqual(read("if self.a:", "  x *= 2", plain).condition, "not (self.a)")
        self.assertEqual(read(*(f"if self.a{i}:\n  z = {i}" for i in range(6)), plain),
                         "has more than 32 paths")  # fmt: skip
        self.assertEqual(read("z = self.f(x)", "return self.down(self.act(self.both(x)), y=z)"),
                         "passes y to down")  # fmt: skip


class Facts(unittest.TestCase):
    def test_every_committed_spelling_has_its_verdict(self) -> None:
        self.assertGreaterEqual(len(FACTS), 5)
        for path in FACTS:
            facts = json.loads(path.read_text(encoding="utf-8"))
            self.assertEqual(path.stem, f"{facts['host']}-{facts['version']}")
            used = {number for _, _, number in facts["classes"]}
            self.assertEqual(used, set(range(len(facts["spellings"]))))
            for item in facts["spellings"]:
                with self.subTest(path.stem, forward=item["forward"]):
                    verdict = script().verdict(item["forward"], facts["host"])
                    self.assertEqual(verdict, item["verdict"])
                    self.assertEqual(spelling(item["forward"]), item["forward"])

    def test_the_script_reads_a_folder_and_the_tables_are_current(self) -> None:
        facts = script()
        self.assertEqual(facts.main(["tables", "--check"]), 0)
        with tempfile.TemporaryDirectory() as folder:
            text = ("class A:\n def forward(self, x):\n  return self.d(F.silu(self.g(x)) * self.u(x))\n"
                    "class B:\n def forward(self, hidden):\n"
                    "  y = self.gate_up(hidden)\n  z = self.down(2 * y)\n  return z + 1\n"
                    "class C:\n def forward(self, x):\n  return self.fc2(self.act(self.fc1(x)))\n")  # fmt: skip
            (Path(folder) / "models.py").write_text(text, encoding="utf-8")
            found = facts.read(Path(folder), "host", "1")
            self.assertEqual([name for name, _, _ in found["classes"]], ["A", "B"])
            self.assertEqual(found["spellings"][1]["verdict"], "returns self.down(...) + 1")
            document = "<!-- serving summary -->\n<!-- /serving summary -->"
            with mock.patch.object(facts, "DOCUMENT", Path(folder) / "serving.md"):
                facts.DOCUMENT.write_text(document, encoding="utf-8")
                with self.assertRaises(SystemExit):  # no place for the hosts' tables
                    facts.main(["tables"])


if __name__ == "__main__":
    unittest.main()
