# SPDX-License-Identifier: Apache-2.0
"""The vLLM plug-in against a stub of vLLM's classes: which modules it serves, which it leaves, what its
operators compute, how it chooses, what it says. bench/vllm_decode.py runs the real one on a GPU."""

import importlib
import importlib.metadata
import inspect
import logging
import os
import subprocess
import sys
import tempfile
import types
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from engine_stub import D, GeluAndMul, H, SiluAndMul
from torch import Tensor, nn
from torch.nn import functional
from vllm_stub import (
    MLP,
    MergedColumnParallelLinear,
    ParallelLMHead,
    QKVParallelLinear,
    Quantized,
    REDUCED,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedEmbeddingMethod,
    WithLoRA,
    stub,
)

import sluice.vllm as plugin
from sluice import Gate, doctor, proof
from sluice.serving import operators


@contextmanager
def installed(modules: dict[str, types.ModuleType]) -> Iterator[None]:
    """Not mock.patch.dict, which would also forget what is first imported meanwhile."""
    sys.modules.update(modules)
    sys.modules.pop("sluice.vllm.classes", None)  # binds vLLM's classes when it is imported
    vars(plugin).pop("classes", None)
    try:
        yield
    finally:
        for name in (*modules, "sluice.vllm.classes"):
            sys.modules.pop(name, None)
        sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "sluice.serving.layers"]


class Stubbed(unittest.TestCase):
    """vLLM's modules are the stub's, and the plug-in has registered itself in mode ``force``."""

    mode = "force"

    def setUp(self) -> None:
        torch.manual_seed(0)
        REDUCED.clear()
        self.modules = stub()
        self.enterContext(installed(self.modules))
        self.enterContext(mock.patch.dict(os.environ, {"SLUICE_VLLM": self.mode}))
        self.enterContext(mock.patch("sluice.capi.variants", lambda backend: ("cuda.simt",)))
        proof._results.clear()
        self.said = self.register()
        from sluice.vllm import classes

        self.classes, self.operators = classes, operators
        operators.calls.update(dict.fromkeys(operators.calls, 0))
        operators.choices.clear()

    def register(self) -> str:
        plugin.PLUGIN.registered = False
        with self.assertLogs("vllm.sluice", "INFO") as logs:
            plugin.register()
        (line,) = logs.output
        return line

    def make(self, name: str, **options: Any) -> nn.Module:
        models = "vllm.model_executor.models."
        kind = getattr(self.modules[models + name.split(".")[0]], name.split(".")[1])
        return kind(**options)

    def ours(self, function: Callable[[], Any]) -> Any:
        """The result of a call that Sluice must have computed, once."""
        before = self.operators.calls["sluice"]
        with torch.inference_mode():
            result = function()
        self.assertEqual(self.operators.calls["sluice"], before + 1)
        return result

    def assert_near(self, got: Tensor, expected: Tensor) -> None:
        """Each rounds g, u, h, n and y to bf16 where it does: a few units of the largest element."""
        self.assertLess((got - expected).abs().max(), 4 * 2.0**-8 * expected.abs().max())


class Serves(Stubbed):
    def test_what_it_says_and_how_it_separates_compiled_graphs(self) -> None:
        names = "QKVParallelLinear, RowParallelLinear, ReplicatedLinear, ParallelLMHead"
        self.assertRegex(self.said, rf"Sluice: [0-9.]+, force; up to 64 tokens of {names}$")
        with self.assertLogs("vllm.sluice", "INFO") as logs:
            for _ in range(2):
                self.make("llama.LlamaMLP")
        self.assertEqual(logs.output, ["INFO:vllm.sluice:Sluice: serves LlamaMLP"])
        tag = self.modules["vllm.envs"].environment_variables[plugin.CACHE_TAG]()
        self.assertRegex(tag, r"^[0-9.]+ force \d+ linears sums$")
        with self.assertNoLogs("vllm.sluice"):
            plugin.register()  # vLLM may call it again

    def test_every_listed_mlp_gives_vllms_result(self) -> None:
        x = torch.randn(5, D).bfloat16()
        for name, act, gate in (("llama.LlamaMLP", None, "silu"), ("qwen2.Qwen2MLP", None, "silu"),
                                ("gemma.GemmaMLP", GeluAndMul("none"), "gelu_erf"),
                                ("gemma2.Gemma2MLP", GeluAndMul("tanh"), "gelu_tanh")):  # fmt: skip
            mlp = self.make(name, act=act)
            with self.subTest(name):
                self.assertEqual(self.classes.ENGINE.activation(mlp, mlp.sluice_form), Gate(gate).code)  # bf16 hides it
                self.assert_near(self.ours(lambda: mlp(x)), mlp.sluice_stock_forward(x))

    def test_layers_take_the_norms_in(self) -> None:
        positions, x, residual = torch.arange(5), *torch.randn(2, 5, D).bfloat16()
        for name in ("llama.LlamaDecoderLayer", "qwen2.Qwen2DecoderLayer", "qwen3.Qwen3DecoderLayer"):
            layer = self.make(name)
            for before in (None, residual):
                first, second = layer.input_layernorm, layer.post_attention_layernorm
                with (
                    self.subTest(name, first_layer=before is None),
                    mock.patch.object(first, "forward", wraps=first.forward),
                    mock.patch.object(second, "forward"),
                ):
                    y, r = self.ours(lambda: layer(positions, x, before))
                    self.assertEqual(first.forward.called, before is None)  # it has nothing to add
                    second.forward.assert_not_called()
                stock = layer.sluice_stock_forward(positions, x, before)
                self.assert_near(y, stock[0])
                self.assert_near(r, stock[1])

    def test_tensor_parallel_leaves_the_all_reduce_and_the_norm_to_vllm(self) -> None:
        layer = self.make("llama.LlamaDecoderLayer", tp_size=2)
        x, residual = torch.randn(2, 5, D).bfloat16()
        self.assertFalse(self.classes._norms_can_move(layer))
        y, _ = self.ours(lambda: layer(torch.arange(5), x, residual))
        self.assertEqual(len(REDUCED), 1)
        self.assert_near(y, layer.sluice_stock_forward(torch.arange(5), x, residual)[0])
        layer.mlp.down_proj.reduce_results = False
        self.ours(lambda: layer.mlp(x))
        self.assertEqual(len(REDUCED), 2)  # the stock forward's own, not one more

    def test_traces_in_one_graph_for_every_token_count(self) -> None:
        layer = self.make("llama.LlamaDecoderLayer").requires_grad_(False)
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for m in (5, 9, 3):
            positions, x, residual = torch.arange(m), *torch.randn(2, m, D).bfloat16()
            for tensor in (x, residual, positions):
                torch._dynamo.mark_dynamic(tensor, 0)
            got, expected = compiled(positions, x, residual), layer(positions, x, residual)
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(got, expected)))

    def test_opcheck(self) -> None:
        layer = self.make("llama.LlamaDecoderLayer").requires_grad_(False)
        x, residual = torch.randn(2, 5, D).bfloat16()
        mlp, norm = layer.mlp, layer.post_attention_layernorm
        weights = (mlp.gate_up_proj.weight.data, mlp.down_proj.weight.data)
        for overload, arguments in (
            (torch.ops.sluice_serving.mlp.default, (x, *weights, 0)),
            (torch.ops.sluice_serving.norm_mlp.default,
             (x, residual, norm.weight.data, *weights, 1e-5, 0)),
            (torch.ops.sluice_serving.add_norm.default, (x, residual, norm.weight.data, 1e-5)),
        ):  # fmt: skip
            self.assertEqual(set(torch.library.opcheck(overload, arguments).values()), {"SUCCESS"})


class Linears(Stubbed):
    def product(self, layer: nn.Module, m: int, who: str) -> None:
        """Of this layer is vLLM's, computed by this one."""
        before = dict(operators.linear_calls)
        x = torch.randn(m, D).bfloat16()
        with torch.inference_mode():
            y = layer.quant_method.apply(layer, x, layer.bias)
        new = {name for name, count in operators.linear_calls.items() if count > before[name]}
        self.assertEqual(new, {who} - {"vllm"})
        self.assert_near(y, functional.linear(x, layer.weight, layer.bias))

    def test_an_mlp_is_compared_with_vllms_own_products(self) -> None:
        before = dict(operators.linear_calls)
        self.make("llama.LlamaMLP")
        self.assertEqual(operators.linear_calls, before)

    def test_plain_layers_and_the_head(self) -> None:
        for kind in (QKVParallelLinear, RowParallelLinear, ReplicatedLinear, ParallelLMHead):
            for bias in (False, True):
                layer = kind(H, D, bias=bias)
                if kind is ParallelLMHead:
                    layer.quant_method = UnquantizedEmbeddingMethod()
                with self.subTest(kind, bias=bias):
                    self.product(layer, 5, "sluice")
                    self.product(layer, 64, "sluice")
                    self.product(layer, 65, "stock")

    def test_layers_that_stay_vllms(self) -> None:
        quantised = QKVParallelLinear(H, D)
        quantised.quant_method = Quantized()
        self.product(quantised, 5, "vllm")
        self.product(type("Special", (QKVParallelLinear,), {})(H, D), 5, "vllm")
        self.product(MergedColumnParallelLinear(H, D), 5, "vllm")
        wide = QKVParallelLinear(H, D).float()
        x = torch.randn(5, D)
        self.assertTrue(torch.equal(wide(x)[0], functional.linear(x, wide.weight)))

    def test_a_lora_wrapper_adds_its_own_to_the_base_layers_product(self) -> None:
        layer, x = WithLoRA(QKVParallelLinear(H, D)), torch.randn(5, D).bfloat16()
        with torch.inference_mode():
            self.assert_near(layer(x), functional.linear(x, layer.weight) + 1)

    def test_a_shape_that_disagrees_in_numbers(self) -> None:
        wrong = {"sluice": lambda x, w, *_: functional.linear(x, w) * 2}
        operators.linear_choices.clear()
        self.addCleanup(operators.linear_choices.clear)
        with mock.patch.object(operators, "_linear_ours", wrong["sluice"]):
            with self.assertLogs("sluice", "WARNING") as logs:
                self.product(QKVParallelLinear(H, D), 5, "stock")
                self.product(QKVParallelLinear(H, D), 5, "stock")
        self.assertEqual(len(logs.output), 1)
        self.assertIn(f"linear {H}x{D} is left alone: its result is off by", logs.output[0])

    def test_the_ladder_chooses(self) -> None:
        def sampler(run: Callable[[], Tensor], *_: object) -> Callable[[], float]:
            m = run().shape[0]
            self.timed += 1
            ours = self.timed % 2 == 1
            return lambda: (9.0 if m <= 8 else 9.9) if ours else 10.0

        self.timed = 0
        operators.linear_choices.clear()
        self.addCleanup(operators.linear_choices.clear)
        layer = QKVParallelLinear(H, D)
        with (
            mock.patch.object(operators, "_mode", "auto"),
            mock.patch.object(operators, "MEASURED", ("cpu",)),
            mock.patch.object(operators, "_sampler", sampler),
        ):
            with mock.patch("torch.cuda.is_available", lambda: True), mock.patch(
                "torch.cuda.is_current_stream_capturing", lambda: True
            ):
                self.product(layer, 4, "stock")  # nothing is measured during a capture
            for m, who in ((1, "sluice"), (8, "sluice"), (9, "stock"), (64, "stock"), (70, "stock")):
                self.product(layer, m, who)
        self.assertEqual(self.timed, 2 * len([s for s in operators.STEPS if s <= 64]))

    def test_traces_in_one_graph_for_every_token_count(self) -> None:
        layer = QKVParallelLinear(H, D).requires_grad_(False)
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for m in (5, 90, 3):
            x = torch.randn(m, D).bfloat16()
            torch._dynamo.mark_dynamic(x, 0)
            self.assertTrue(torch.equal(compiled(x)[0], layer(x)[0]))

    def test_opcheck(self) -> None:
        x, w, b = (torch.randn(shape).bfloat16() for shape in ((5, D), (H, D), (H,)))
        for bias in (None, b):
            checks = torch.library.opcheck(torch.ops.sluice_serving.linear.default, (x, w, bias, True))
            self.assertEqual(set(checks.values()), {"SUCCESS"})


class Leaves(Stubbed):
    def left(self, mlp: nn.Module, reason: str) -> None:
        self.assertIn(reason, self.classes.obstacle(mlp))
        x = torch.randn(5, D).bfloat16()
        self.assertTrue(torch.equal(mlp(x), mlp.sluice_stock_forward(x)))
        self.assertEqual(set(self.operators.calls.values()), {0})

    def test_modules_that_are_no_plain_mlp_any_more(self) -> None:
        lora = self.make("llama.LlamaMLP")
        lora.down_proj = type("RowParallelLinearWithLoRA", (RowParallelLinear,), {})(D, H)
        self.left(lora, "LoRA")
        quantised = self.make("llama.LlamaMLP")
        quantised.gate_up_proj.quant_method = Quantized()
        self.left(quantised, "quantised")
        biased = self.make("llama.LlamaMLP", bias=True)
        self.left(biased, "biases")
        other = self.make("llama.LlamaMLP", act=nn.Identity())
        other.act_fn.forward = lambda x: x[:, :H]
        self.left(other, "activation")
        projector = self.make("llama.LlamaMLP")
        projector.down_proj = RowParallelLinear(D + 8, H)
        self.left(projector, f"down is [{D + 8}, {H}], wanted [{D}, {H}]")
        wide = self.make("llama.LlamaMLP").float()
        self.assertIn("neither bfloat16", self.classes.obstacle(wide))

    def test_a_decoder_layer_with_other_names(self) -> None:
        """It may be called by them."""
        for text, expected in (("positions, hidden_states, residual", True),
                               ("position_ids, x, residual", False)):  # fmt: skip
            self.assertIs(self.classes._has_its_names(eval(f"lambda self, {text}: None")), expected)

    def test_subclasses_that_compute_something_else(self) -> None:
        kind = self.modules["vllm.model_executor.models.llama"].LlamaMLP

        class FalconH1MLP(kind):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) * 2

        special, x = FalconH1MLP(), torch.randn(5, D).bfloat16()
        self.assertTrue(torch.equal(special(x), 2 * special.sluice_stock_forward(x)))
        self.assertEqual(set(self.operators.calls.values()), {0})

    def test_a_class_that_disagrees_in_numbers(self) -> None:
        """Its syntax is the form's, its activation has a known class and another forward."""
        with mock.patch.object(SiluAndMul, "forward", lambda self, x: x[:, : x.shape[1] // 2] * 2):
            with self.assertLogs("sluice", "WARNING") as logs:
                mlps = [self.make("llama.LlamaMLP") for _ in range(2)]
        self.assertEqual(len(logs.output), 1)
        self.assertIn("LlamaMLP is left alone: its result differs from Sluice's by", logs.output[0])
        for mlp in mlps:
            self.left(mlp, "its class has another forward")

    def test_it_says_each_reason_once(self) -> None:
        with self.assertLogs("vllm.sluice", "INFO") as logs:
            for _ in range(3):
                self.make("llama.LlamaMLP", bias=True)
                self.make("qwen2.Qwen2MLP", act=nn.Identity())
        self.assertEqual(len(logs.output), 2, logs.output)
        self.assertIn("LlamaMLP stays vLLM's: the projections have biases", logs.output[0])


class Late(Stubbed):
    def test_classes_that_are_imported_later(self) -> None:
        """As vLLM imports a model when it is asked for: under any name, from a file."""
        source = inspect.getsource(MLP).replace("class MLP", "class NewMLP")
        source = source.replace("x, _ = self.gate_up_proj(x)\n        x = self.act_fn(x)",
                                "h = maybe_fused_act_quant(self.act_fn, self.gate_up_proj(x)[0], self.down_proj)")
        source = source.replace("self.down_proj(x)", "self.down_proj(h)")
        head = ("from __future__ import annotations\nfrom test_vllm import *\n"
                "def maybe_fused_act_quant(act, x, linear): return act(x)\n")  # fmt: skip
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "beam.py").write_text(head + source, encoding="utf-8")
        self.modules["vllm.model_executor.models"].__path__ = [str(folder)]
        self.addCleanup(sys.modules.pop, "vllm.model_executor.models.beam", None)
        late = importlib.import_module("vllm.model_executor.models.beam")
        mlp, x = late.NewMLP(), torch.randn(5, D).bfloat16()
        self.assert_near(self.ours(lambda: mlp(x)), mlp.sluice_stock_forward(x))


class Chooses(Stubbed):
    """Mode ``auto``, with times that are made up: Sluice is the fastest up to eight tokens, Sluice and
    cuBLAS together up to a hundred."""

    mode = "auto"

    def setUp(self) -> None:
        super().setUp()
        self.measured: list[bool] = []
        self.enterContext(mock.patch.object(operators, "_sampler", self.made_up))

    def made_up(
        self, run: Callable[[], Tensor], between: Callable[[], Tensor], captured: bool
    ) -> Callable[[], float]:
        m = run().shape[0]
        self.assertEqual(between().shape, (m, D))
        self.measured.append(captured)
        way = ("sluice", "mixed", "stock")[(len(self.measured) - 1) % 3]
        least = {"sluice": 9.0 if m <= 8 else 11.0, "mixed": 9.5 if m <= 100 else 9.8, "stock": 10.0}
        times = iter(least[way] + more for more in (2, 0, 1, 3, 2))
        return lambda: next(times)

    def test_each_way_is_timed_by_itself(self) -> None:
        called: list[tuple[str, int]] = []
        ways = {name: partial(lambda name, m: called.append((name, m)), name) for name in operators.MLP}

        def sampler(run: Callable[[], None], *_: object) -> Callable[[], float]:
            return lambda: run() or 1.0

        with mock.patch.object(operators, "_sampler", sampler):
            operators.Choice("an operator").measure(torch.zeros(600, D), ways)
        for step in (8, 600):
            self.assertEqual({name for name, m in called if m == step}, set(ways))

    def served(self, mlp: nn.Module, m: int) -> str:
        before = dict(self.operators.calls)
        x = torch.randn(m, D).bfloat16()
        self.assert_near(mlp(x), mlp.sluice_stock_forward(x))
        (who,) = [name for name, n in self.operators.calls.items() if n != before[name]]
        return who

    def test_the_faster_one_serves_each_token_count_and_is_measured_once(self) -> None:
        first, second = (self.make("llama.LlamaMLP").requires_grad_(False) for _ in range(2))
        with self.assertLogs("vllm.sluice", "INFO") as logs:
            self.served(first, 700)  # the profiling run
        self.assertIn("over that of sluice and mixed: 1:sluice 1.11 1.05, 2:sluice", logs.output[0])
        self.assertIn("12:mixed 0.91 1.05, ", logs.output[0])
        self.assertIn("128:stock 0.91 1.02, ", logs.output[0])  # too close to tell
        (choice,) = self.operators.choices.values()
        self.assertEqual(choice.steps[-2:], [512, 700])
        self.assertEqual(self.measured[-9::3], [True, True, False])  # as vLLM runs them
        count = len(self.measured)
        for mlp in (first, second):
            for m, who in ((1, "sluice"), (7, "sluice"), (8, "sluice"), (9, "mixed"), (96, "mixed"),
                           (97, "stock"), (600, "stock"), (1400, "stock")):  # fmt: skip
                self.assertEqual(self.served(mlp, m), who, m)
        self.assertEqual(len(self.measured), count)
        self.served(first, 1500)  # far above what was measured
        self.assertGreater(len(self.measured), count)

    def test_nothing_is_measured_during_a_capture(self) -> None:
        mlp = self.make("llama.LlamaMLP").requires_grad_(False)
        with mock.patch.object(operators, "is_capturing", lambda: True):
            self.assertEqual(self.served(mlp, 4), "sluice")
        self.assertEqual(self.measured, [])

    def test_an_error_of_sluice_leaves_vllm_as_it_is(self) -> None:
        def fail(
            run: Callable[[], Any], between: Callable[[], Any], captured: bool
        ) -> Callable[[], float]:
            self.measured.append(captured)
            if len(self.measured) % 3:
                raise RuntimeError("no kernel")
            return lambda: 10.0

        mlp = self.make("llama.LlamaMLP").requires_grad_(False)
        with mock.patch.object(self.operators, "_sampler", fail):
            with self.assertLogs("vllm.sluice", "WARNING") as logs:
                self.assertEqual(self.served(mlp, 1), "stock")
        self.assertIn("of 1 tokens, sluice: no kernel", logs.output[0])
        self.assertIn("of 1 tokens, mixed: no kernel", logs.output[1])


class Registers(unittest.TestCase):
    """What keeps the plug-in out; none of it may raise."""

    def said(self, word: str = "auto", cuda: bool = True, linears: str = "") -> list[str]:
        plugin.PLUGIN.registered = False
        self.addCleanup(setattr, plugin.PLUGIN, "registered", False)
        with (
            installed(stub()),
            mock.patch.dict(os.environ, {"SLUICE_VLLM": word, "SLUICE_VLLM_LINEARS": linears}),
            mock.patch("sluice.capi.variants", lambda backend: ("cuda.simt",) if cuda else ()),
            self.assertLogs("vllm.sluice", "INFO") as logs,
        ):
            logging.getLogger("vllm.sluice").info("registering")  # assertLogs wants a line
            plugin.register()
        return logs.output[1:]

    def test_off_says_nothing(self) -> None:
        self.assertEqual(self.said(word="off"), [])

    def test_linears_off(self) -> None:
        (line,) = self.said(linears="off")
        self.assertRegex(line, "Sluice: [0-9.]+, auto$")

    def test_an_unknown_word_for_linears_leaves_them_alone(self) -> None:
        warning, line = self.said(linears="force")
        self.assertIn("no linear layers: SLUICE_VLLM_LINEARS: got 'force', wanted one of auto, off", warning)
        self.assertRegex(line, "Sluice: [0-9.]+, auto$")

    def test_an_unknown_word_for_sums_leaves_them_alone(self) -> None:
        with mock.patch.dict(os.environ, {"SLUICE_VLLM_SUMS": "on"}):
            warning, _ = self.said()
            self.assertIn("no sums over ranks: SLUICE_VLLM_SUMS: got 'on', wanted one of auto, off", warning)
            with (
                mock.patch.object(doctor, "_installed", lambda name: "0.23.0"),
                mock.patch("sluice.capi.variants", lambda backend: ("cuda.simt",)),
            ):
                asked = doctor._asks("sluice", "VLLM_PLUGINS", plugin.PLUGIN)
            self.assertRegex(asked, "^auto, no sums over ranks: SLUICE_VLLM_SUMS: got 'on'")

    def test_auto_is_the_default(self) -> None:
        (line,) = self.said(word="")
        self.assertRegex(line, "Sluice: [0-9.]+, auto; up to 64 tokens of ")

    def test_reasons(self) -> None:
        for expected, options in (
            ("SLUICE_VLLM: got 'yes', wanted one of auto, force, off", {"word": "yes"}),
            ("this Sluice was built without CUDA", {"cuda": False}),
        ):
            (line,) = self.said(**options)
            self.assertIn(f"WARNING:vllm.sluice:Sluice: not used: {expected}", line)

    def test_a_vllm_without_its_modules_is_left_alone(self) -> None:
        plugin.PLUGIN.registered = False
        self.addCleanup(setattr, plugin.PLUGIN, "registered", False)
        with self.assertLogs("vllm.sluice", "WARNING") as logs:
            with (
                mock.patch.dict(sys.modules, {"vllm": None}),
                mock.patch.dict(os.environ, {"SLUICE_VLLM": "auto"}),
            ):
                plugin.register()
        self.assertIn("not used: ", logs.output[0])

    def test_the_wheel_has_the_entry_point(self) -> None:
        package = Path(plugin.__file__).parents[2]
        if not list(package.glob("sluice-*.dist-info")):
            self.skipTest(f"{package} was not installed from a wheel")
        for group, module in (("vllm.general_plugins", "sluice.vllm"),
                              ("sglang.srt.plugins", "sluice.sglang")):  # fmt: skip
            code = (f"import importlib.metadata as m; (p,) = [e for e in m.entry_points(group='{group}')"
                    " if e.name == 'sluice']; print(p.load().__module__)")  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=False
            )
            self.assertEqual(done.stdout.strip(), module, done.stderr)

    def test_the_doctor_says_whether_the_plug_in_is_active(self) -> None:
        point = importlib.metadata.EntryPoint("sluice", "sluice.vllm:register", "vllm.general_plugins")
        here = "0.23.1"
        for version, cuda, environment, expected in (
            (here, True, {}, ("ok", "auto")),
            (here, True, {"SLUICE_VLLM": "auto"}, ("ok", "auto")),
            (here, True, {"SLUICE_VLLM": "force"}, ("ok", "force")),
            (here, True, {"SLUICE_VLLM": "off"}, ("no", "off")),
            (here, True, {"SLUICE_VLLM": "yes"}, ("no", "off: SLUICE_VLLM: got 'yes'")),
            (here, True, {"VLLM_PLUGINS": "other"}, ("no", "off: VLLM_PLUGINS=other")),
            (here, False, {}, ("no", "off: this Sluice was built without CUDA")),
            (None, True, {}, ("no", "off: vLLM is not installed")),
        ):
            with (
                self.subTest(version=version, cuda=cuda, environment=environment),
                mock.patch.dict(os.environ, environment),
                mock.patch("sluice.doctor._installed", lambda name, version=version: version),
                mock.patch("sluice.capi.variants", lambda backend, cuda=cuda: ("a",) * cuda),
                mock.patch("importlib.metadata.entry_points",
                           lambda group: [point] if group == point.group else []),
            ):  # fmt: skip
                (finding,) = doctor._plugins()
                self.assertEqual(finding.state, expected[0])
                self.assertIn(f"sluice.vllm:register, {expected[1]}", finding.text)


if __name__ == "__main__":
    unittest.main()
