# SPDX-License-Identifier: Apache-2.0
"""The SGLang plug-in against a stand-in (``sglang_stub``) in the layouts of 0.5.16 and 0.5.23: which modules
it serves, what it hands on, what it leaves, what it says."""

import copy
import importlib
import importlib.metadata
import logging
import os
import sys
import tempfile
import types
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import sglang_stub as stub
import torch
from sglang_stub import FLAGS, REDUCED, D
from torch import Tensor, nn

import sluice.sglang as plugin
from sluice import Gate, doctor, proof
from sluice.serving import operators

LOG = "sluice.sglang"


@contextmanager
def installed(modules: dict[str, types.ModuleType]) -> Iterator[None]:
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in list(sys.modules):
            if name.split(".")[0] == "sglang" or name == "sluice.sglang.classes":
                del sys.modules[name]
        vars(plugin).pop("classes", None)
        sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "sluice.serving.layers"]


class Stubbed(unittest.TestCase):
    """The stand-in is installed, and the plug-in has registered itself in mode ``force``."""

    mode, version = "force", "0.5.16"

    def setUp(self) -> None:
        torch.manual_seed(0)
        REDUCED.clear()
        vars(FLAGS).update(skip=False, sp_active=False, deterministic=False, dual=False, policy=None)
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(installed(stub.modules(self.version, folder)))
        self.enterContext(mock.patch.dict(os.environ, {"SLUICE_SGLANG": self.mode}))
        self.enterContext(mock.patch("sluice.capi.variants", lambda backend: ("cuda.simt",)))
        proof._results.clear()
        operators.calls.update(dict.fromkeys(operators.calls, 0))
        operators.choices.clear()
        plugin.PLUGIN.registered = False
        with self.assertNoLogs(LOG):
            plugin.register()
        self.models = {
            name: importlib.import_module(f"sglang.srt.models.{name}")
            for name in ("llama", "qwen2", "flags")
        }
        self.classes = sys.modules["sluice.sglang.classes"]
        self.classes.DEVICES = ("cpu",)
        self.enterContext(torch.inference_mode())

    def make(self, name: str, **options: Any) -> nn.Module:
        model, kind = name.split(".")
        return getattr(self.models[model], kind)(**options)

    def stock(self, module: nn.Module, *arguments: Any, **named: Any) -> Any:
        """SGLang's own forward, on copies, since its norm writes into its inputs."""
        forward = type(module).forward.__wrapped__
        with mock.patch.object(self.classes, "_records", {}):  # inner modules are SGLang's too
            return forward(module, *copy.deepcopy(arguments), **named)

    def served(self, function: Callable[[], Any], times: int = 1) -> Any:
        """The result of a call that Sluice must have computed so often."""
        before = operators.calls["sluice"]
        result = function()
        self.assertEqual(operators.calls["sluice"] - before, times)
        return result

    def assert_near(self, got: Tensor, expected: Tensor) -> None:
        """Each rounds g, u, h, n and y to bf16 where it does: a few units of the largest element."""
        self.assertLess((got - expected).abs().max(), 4 * 2.0**-8 * expected.abs().max())

    def assert_left(self, mlp: nn.Module, reason: str | None = None, **named: Any) -> None:
        x, stock = torch.randn(5, D).bfloat16(), type(mlp).forward.__wrapped__
        with self.assertLogs(LOG, "INFO") as logs:
            logging.getLogger(LOG).info("called")
            got = self.served(lambda: mlp(x, **named), times=0)
        self.assertTrue(torch.equal(got, stock(mlp, x, **named)))
        if reason is not None:
            self.assertIn(reason, "\n".join(logs.output))


class Serves(Stubbed):
    def test_every_mlp_gives_sglangs_result(self) -> None:
        x = torch.randn(5, D).bfloat16()
        for name, act, gate in (("llama.LlamaMLP", None, "silu"), ("qwen2.Qwen2MLP", None, "silu"),
                                ("flags.FlagsMLP", stub.GeluAndMul("none"), "gelu_erf"),
                                ("flags.FlagsMLP", stub.GeluAndMul("tanh"), "gelu_tanh")):  # fmt: skip
            for batch in ({}, {"forward_batch": SimpleNamespace(is_decode=True)}):
                mlp = self.make(name, act=act)
                with self.subTest(name, gate=gate, batch=batch):
                    self.assert_near(self.served(lambda: mlp(x, **batch)), self.stock(mlp, x))
                    code = self.classes.ENGINE.activation(mlp, mlp.sluice_form)
                    self.assertEqual(code, Gate(gate).code)  # bf16 hides it

    def test_it_says_its_version_and_each_class_once(self) -> None:
        x = torch.randn(5, D).bfloat16()
        with self.assertLogs(LOG, "INFO") as logs:
            for _ in range(2):
                self.make("llama.LlamaMLP")(x)
        self.assertRegex(logs.output[0], r"Sluice: [0-9.]+, force; up to 64 tokens of QKVParallelLinear, ")
        self.assertEqual(logs.output[1:], [f"INFO:{LOG}:Sluice: serves LlamaMLP"])

    def test_arguments_reach_sglangs_reduction(self) -> None:
        x, batch = torch.randn(5, D).bfloat16(), SimpleNamespace(is_decode=False)
        mlp = self.make("qwen2.Qwen2MLP", tp_size=2)
        y = self.served(lambda: mlp(x, batch))
        self.assertEqual(REDUCED, [batch])
        self.assert_near(y, self.stock(mlp, x))
        mlp = self.make("flags.FlagsMLP", tp_size=2)
        for flag in ("should_allreduce_fusion", "use_reduce_scatter"):
            REDUCED.clear()
            part = self.served(lambda: mlp(x, **{flag: True}))
            self.assertEqual(REDUCED, [])
            whole = self.served(lambda: mlp(x))
            self.assertEqual(REDUCED, [None])
            self.assertTrue(torch.equal(whole, 2 * part))
        FLAGS.skip = True  # the decoder's own flag
        self.assertTrue(torch.equal(self.served(lambda: mlp(x)), part))
        mlp.down_proj.reduce_results, FLAGS.skip = False, False
        self.assertTrue(torch.equal(self.served(lambda: mlp(x)), part))

    def test_a_subclass_may_call_its_bases_forward(self) -> None:
        mlp, x = self.make("llama.FalconMLP"), torch.randn(5, D).bfloat16()
        y = self.served(lambda: mlp(x))
        base = self.models["llama"].LlamaMLP.forward.__wrapped__
        self.assert_near(y, 2 * base(mlp, x))

    def test_a_layer_takes_the_norm_before_its_mlp_in(self) -> None:
        layer = self.make("llama.DecoderLayer")
        positions, x, residual = torch.arange(5), *torch.randn(2, 5, D).bfloat16()
        for before in (None, residual):
            expected = self.stock(layer, positions, x, None, before)
            norm = layer.post_attention_layernorm
            hook = mock.Mock()  # a hook of the module, not an attribute of its own
            handle = norm.register_forward_hook(hook)
            y, r = self.served(lambda: layer(positions, *copy.deepcopy((x, None, before))))
            handle.remove()
            hook.assert_not_called()
            self.assert_near(y, expected[0])
            self.assert_near(r, expected[1])

    def test_norms_that_stay(self) -> None:
        positions, x, residual = torch.arange(5), *torch.randn(2, 5, D).bfloat16()
        parallel, cast = self.make("llama.DecoderLayer", tp_size=2), self.make("llama.DecoderLayer")
        cast.post_attention_layernorm.cast_x_before_out_mul = True
        for layer in (parallel, cast):
            expected = self.stock(layer, positions, x, None, residual)
            REDUCED.clear()
            y, r = self.served(lambda: layer(positions, *copy.deepcopy((x, None, residual))))
            self.assertEqual(len(REDUCED), int(layer is parallel))
            self.assert_near(y, expected[0])
            self.assertTrue(torch.equal(r, expected[1]))

    def test_weights_that_are_loaded_later_count(self) -> None:
        mlp, x = self.make("llama.LlamaMLP"), torch.randn(5, D).bfloat16()
        first = self.served(lambda: mlp(x))
        mlp.down_proj.weight = nn.Parameter(2 * mlp.down_proj.weight, requires_grad=False)
        self.assertTrue(torch.equal(self.served(lambda: mlp(x)), 2 * first))


class ServesNewer(Serves):
    version = "0.5.23"

    def test_sglangs_kernel_for_few_tokens_goes_first(self) -> None:
        mlp = self.make("llama.LlamaMLP")
        few, many = torch.randn(16, D).bfloat16(), torch.randn(17, D).bfloat16()
        FLAGS.dual = True
        self.assertTrue(torch.equal(self.served(lambda: mlp(few), times=0), self.stock(mlp, few)))
        self.assert_near(self.served(lambda: mlp(many)), self.stock(mlp, many))


class Leaves(Stubbed):
    def test_modules_that_are_no_plain_mlp_any_more(self) -> None:
        lora = self.make("llama.LlamaMLP")
        lora(torch.randn(5, D).bfloat16())  # served until now
        inner = lora.down_proj
        lora.down_proj = type("RowParallelLinearWithLoRA", (type(inner),), {})(D, stub.H)
        self.assert_left(lora, "LoRA")
        wrapped = self.make("llama.LlamaMLP")
        wrapped.gate_up_proj.forward = wrapped.gate_up_proj.forward
        self.assert_left(wrapped)
        for part, name, value, reason in (
            ("gate_up_proj", "quant_method", stub.Fp8LinearMethod(), "quantised"),
            ("gate_up_proj", "gather_output", True, "gather or split"),
            (None, "act_fn", type("Other", (stub.SiluAndMul,), {})(), "activation"),
        ):
            mlp = self.make("llama.LlamaMLP")
            setattr(getattr(mlp, part) if part else mlp, name, value)
            self.assert_left(mlp, reason)
        projector = self.make("llama.LlamaMLP")
        projector.down_proj = type(projector.down_proj)(D + 8, stub.H)
        self.assert_left(projector, f"down is [{D + 8}, {stub.H}], wanted [{D}, {stub.H}]")
        biased = self.make("llama.LlamaMLP", bias=True)
        self.assert_left(biased, "LlamaMLP stays SGLang's: the projections have biases")

    def test_settings_of_the_engine(self) -> None:
        for flag, reason in (("deterministic", "deterministic"), ("sp_active", "shared out")):
            with self.subTest(flag), mock.patch.object(FLAGS, flag, True):
                self.assert_left(self.make("llama.LlamaMLP"), reason)
        with mock.patch.object(FLAGS, "policy", 2):
            self.assert_left(self.make("qwen2.Qwen2MLP"))
        self.assert_left(self.make("flags.FlagsMLP"), gemm_output_zero_allocator=lambda x: x * 2)

    def test_tokens_that_are_no_rows_of_the_weights_type(self) -> None:
        mlp = self.make("llama.LlamaMLP")
        for x in (torch.randn(2, 5, D).bfloat16(), torch.empty(0, D).bfloat16()):
            self.assertTrue(torch.equal(self.served(lambda: mlp(x), times=0), self.stock(mlp, x)))

    def test_a_class_that_disagrees_in_numbers(self) -> None:
        with mock.patch.object(stub.SiluAndMul, "forward", lambda self, x: x[:, : x.shape[1] // 2] * 2):
            mlp = self.make("llama.LlamaMLP")
            with self.assertLogs("sluice", "WARNING") as logs:
                self.assert_left(mlp)
                self.assert_left(mlp)
        self.assertEqual(len([line for line in logs.output if "is left alone" in line]), 1)

    def test_nothing_is_decided_during_a_capture(self) -> None:
        mlp, x = self.make("llama.LlamaMLP"), torch.randn(5, D).bfloat16()
        with (
            mock.patch("torch.cuda.is_available", lambda: True),
            mock.patch("torch.cuda.is_current_stream_capturing", lambda: True),
        ):
            self.served(lambda: mlp(x), times=0)
        self.served(lambda: mlp(x))

    def test_an_error_of_the_plug_in_leaves_sglang_as_it_is_and_says_so_once(self) -> None:
        with mock.patch.object(self.classes, "obstacle", side_effect=AttributeError("renamed")):
            mlp = self.make("llama.LlamaMLP")
            self.assert_left(mlp, "LlamaMLP stays SGLang's: AttributeError: renamed")
            with self.assertNoLogs(LOG):
                mlp(torch.randn(5, D).bfloat16())

    def test_compiled_code_is_sglangs(self) -> None:
        mlp, x = self.make("llama.LlamaMLP"), torch.randn(5, D).bfloat16()
        with mock.patch("torch.compiler.is_compiling", lambda: True):
            self.served(lambda: mlp(x), times=0)


class Linears(Stubbed):
    def product(self, layer: nn.Module, who: str, m: int = 5) -> None:
        before = dict(operators.linear_calls)
        x = torch.randn(m, D).bfloat16()
        y = layer.quant_method.apply(layer, x, layer.bias)
        new = {name for name, count in operators.linear_calls.items() if count > before[name]}
        self.assertEqual(new, {who} - {"sglang"})
        self.assert_near(y, torch.nn.functional.linear(x, layer.weight, layer.bias))

    def test_plain_layers(self) -> None:
        for kind in (stub.QKVParallelLinear, self.classes.RowParallelLinear, stub.ReplicatedLinear):
            for bias in (False, True):
                self.product(kind(stub.H, D, bias=bias), "sluice")
                self.product(kind(stub.H, D, bias=bias), "stock", 65)

    def test_layers_that_stay_sglangs(self) -> None:
        quantised = stub.QKVParallelLinear(stub.H, D)
        quantised.quant_method = stub.Fp8LinearMethod()
        self.product(quantised, "sglang")
        self.product(type("Special", (stub.QKVParallelLinear,), {})(stub.H, D), "sglang")
        layer = stub.QKVParallelLinear(stub.H, D)
        with mock.patch.object(FLAGS, "deterministic", True):
            self.product(layer, "sglang")
        with mock.patch("torch.compiler.is_compiling", lambda: True):
            self.product(layer, "sglang")

    def test_an_mlp_is_compared_with_sglangs_own_products(self) -> None:
        before = dict(operators.linear_calls)
        self.served(lambda: self.make("llama.LlamaMLP")(torch.randn(5, D).bfloat16()))
        self.assertEqual(operators.linear_calls, before)


class Chooses(Stubbed):
    mode = "auto"

    def test_the_fastest_way_serves_and_measuring_changes_no_input(self) -> None:
        """Times are made up: one way is the fastest after the other."""
        layer = self.make("llama.DecoderLayer")
        positions, x, residual = torch.arange(4), *torch.randn(2, 4, D).bfloat16()
        expected = self.stock(layer, positions, x, None, residual)
        ways = ("sluice", "mixed", "stock")
        for fastest in ways:
            order = iter(ways * 100)

            def sampler(run: Callable[[], Any], *_: Any) -> Callable[[], float]:
                name = next(order)  # noqa: B023
                run()
                return lambda: 1.0 if name == fastest else 2.0  # noqa: B023

            operators.choices.clear()
            before = dict(operators.calls)
            with mock.patch.object(operators, "_sampler", sampler):
                y, r = layer(positions, *copy.deepcopy((x, None, residual)))
            self.assertEqual({n for n in ways if operators.calls[n] > before[n]}, {fastest})
            self.assert_near(y, expected[0])
            self.assert_near(r, expected[1])
        self.assertTrue(torch.equal(y, expected[0]))  # stock's, to the bit


class Registers(unittest.TestCase):
    """What keeps the plug-in out; none of it may raise, nor keep a model from being imported."""

    def said(self, word: str = "auto", cuda: bool = True, **changed: Any) -> list[str]:
        plugin.PLUGIN.registered = False
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        modules = stub.modules("0.5.16", folder)
        for name, member in changed.items():
            vars(modules["sglang.srt." + name]).pop(member)
        with (
            installed(modules),
            mock.patch.dict(os.environ, {"SLUICE_SGLANG": word}),
            mock.patch("sluice.capi.variants", lambda backend: ("cuda.simt",) if cuda else ()),
            self.assertLogs(LOG, "INFO") as logs,
        ):
            logging.getLogger(LOG).info("registering")  # assertLogs wants a line
            plugin.register()
            for name in ("llama", "qwen2"):
                self.hooked = hasattr(
                    importlib.import_module(f"sglang.srt.models.{name}").Base.__subclasses__()[0].forward,
                    "__wrapped__",
                )
        return logs.output[1:]

    def test_off_says_nothing_and_hooks_nothing(self) -> None:
        self.assertEqual(self.said(word="off"), [])
        self.assertFalse(self.hooked)
        self.assertEqual(self.said(word=""), [])
        self.assertTrue(self.hooked)

    def test_reasons(self) -> None:
        for expected, options in (
            ("not used: SLUICE_SGLANG: got 'yes', wanted one of auto, force, off", {"word": "yes"}),
            ("not used: this Sluice was built without CUDA", {"cuda": False}),
            ("not used: ImportError: ", {"utils": "is_cuda"}),
            ("not used from sglang.srt.models.llama on: ImportError: ", {"runtime_context": "get_forward"}),
        ):  # fmt: skip
            (line,) = self.said(**options)
            self.assertIn(f"WARNING:{LOG}:Sluice: {expected}", line)
            self.assertFalse(self.hooked)

    def test_the_doctor_says_whether_the_plug_in_is_active(self) -> None:
        point = importlib.metadata.EntryPoint("sluice", "sluice.sglang:register", "sglang.srt.plugins")
        for version, environment, expected in (
            ("0.5.16", {}, ("ok", "auto")),
            ("0.5.16", {"SGLANG_PLUGINS": ""}, ("ok", "auto")),
            ("0.5.16", {"SGLANG_PLUGINS": "other, sluice"}, ("ok", "auto")),
            ("0.5.16", {"SGLANG_PLUGINS": "other"}, ("no", "off: SGLANG_PLUGINS=other")),
            ("0.5.16", {"SLUICE_SGLANG": "off"}, ("no", "off")),
            ("0.5.16", {"SLUICE_SGLANG_LINEARS": "on"},
             ("ok", "auto, no linear layers: SLUICE_SGLANG_LINEARS: got 'on'")),
            (None, {}, ("no", "off: SGLang is not installed")),
        ):
            with (
                self.subTest(version=version, environment=environment),
                mock.patch.dict(os.environ, environment),
                mock.patch("sluice.doctor._installed", lambda name, version=version: version),
                mock.patch("sluice.capi.variants", lambda backend: ("cuda.simt",)),
                mock.patch("importlib.metadata.entry_points",
                           lambda group: [point] if group == point.group else []),
            ):  # fmt: skip
                (finding,) = doctor._plugins()
                self.assertEqual(finding.state, expected[0])
                self.assertIn(f"sluice.sglang:register, {expected[1]}", finding.text)


if __name__ == "__main__":
    unittest.main()
