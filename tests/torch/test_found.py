# SPDX-License-Identifier: Apache-2.0
"""Faults that readers of the package found: parts that are shared or of other tensors, arguments that nobody takes,
messages."""

import copy
import unittest
from unittest import mock

import numpy
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.models.llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

import sluice
from sluice import Gate, capi, ops
from sluice.nn import GatedMLP

CONFIG = LlamaConfig(hidden_size=32, intermediate_size=48)


def alike(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


class SharedParts(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(0)
        self.x = torch.randn(5, 32)

    def test_gate_and_up_may_be_one_layer(self) -> None:
        model = nn.Sequential(LlamaMLP(CONFIG))
        model[0].up_proj = model[0].gate_proj
        wanted = model(self.x)
        self.assertEqual(len(sluice.patch(model).patched), 1)
        alike(model(self.x), wanted)
        mlp = GatedMLP(32, 48)
        mlp.up_proj = mlp.gate_proj
        g = mlp.gate_proj(self.x)
        alike(mlp(self.x), mlp.down_proj(nn.functional.silu(g) * g))

    def test_weights_that_are_more_than_dense_are_called(self) -> None:
        class Wrapped(Tensor):
            """As torchao's: tensors inside a tensor."""

            def __tensor_flatten__(self):
                return [], None

            @staticmethod
            def __tensor_unflatten__(*_):
                raise NotImplementedError

            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                if "sluice" in str(func):
                    raise NotImplementedError(str(func))
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs or {})

        mlp = GatedMLP(32, 48)
        wanted = mlp(self.x)
        for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            linear._parameters["weight"] = linear.weight.detach().as_subclass(Wrapped)
        alike(mlp(self.x), wanted)

    def test_global_hooks_see_the_projections(self) -> None:
        mlp, seen = GatedMLP(32, 48), []
        hook = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m)))
        try:
            mlp(self.x)
        finally:
            hook.remove()
        self.assertEqual(seen.count(nn.Linear), 3)

    def test_want_of_memory_condemns_no_class(self) -> None:
        class Own(LlamaMLP):
            pass

        model = nn.Sequential(Own(CONFIG))
        with mock.patch("sluice.proof._compared", side_effect=torch.OutOfMemoryError("none left")):
            self.assertIn("none left", str(sluice.patch(model)))
        self.assertEqual(len(sluice.patch(model).patched), 1)

    def test_biases_that_torch_broadcasts_are_left(self) -> None:
        model = nn.Sequential(nn.Linear(32, 24), LlamaMLP(CONFIG))
        model[0].bias = nn.Parameter(torch.ones(1))
        model[1].down_proj.bias = nn.Parameter(torch.ones(1))
        wanted = model[0](self.x), model[1](self.x)
        patched = sluice.patch(model, linears=True)
        self.assertEqual(patched.left, {"1": "down_proj.bias is [1], wanted [32]"})
        self.assertEqual(patched.linears_left["0"], "bias is [1], wanted [24]")
        alike(model[0](self.x), wanted[0])
        alike(model[1](self.x), wanted[1])

    def test_a_deep_copy_is_undone_and_patched_again(self) -> None:
        model = nn.Sequential(LlamaMLP(CONFIG))
        sluice.patch(model)
        twin = copy.deepcopy(model)
        sluice.unpatch(twin)
        self.assertNotIn("forward", twin[0].__dict__)
        self.assertIn("forward", model[0].__dict__)
        self.assertEqual(len(sluice.patch(twin, recompute=True).patched), 1)

    def test_arguments_that_the_class_refuses_are_refused(self) -> None:
        model = nn.Sequential(LlamaMLP(CONFIG))
        sluice.patch(model)
        for arguments, named in (((self.x, 2), {}), ((self.x,), {"foo": 1}), ((), {"hidden": self.x}), ((), {})):
            with self.assertRaises(TypeError):
                model[0](*arguments, **named)


class Arguments(unittest.TestCase):
    def test_gates_are_gates(self) -> None:
        w = torch.randn(16, 8), torch.randn(16, 8), torch.randn(8, 16)
        with self.assertRaisesRegex(TypeError, "gate: got 'silu', wanted a sluice.Gate"):
            ops.mlp(torch.randn(2, 8), *w, gate="silu")
        for bad in ({"limit": None}, {"alpha": "1"}):
            with self.assertRaisesRegex(ValueError, "wanted a number"):
                Gate(**bad)
        self.assertEqual(Gate(alpha=numpy.float32(2)).alpha, 2)
        mlp = GatedMLP(8, 16)
        mlp.gate = "relu"
        self.assertIn("relu", repr(mlp))

    def test_sizes_are_integers(self) -> None:
        with self.assertRaisesRegex(ValueError, "m: got 2.5, wanted an integer"):
            sluice.plan(2.5, 8, 8)
        self.assertTrue(sluice.plan(numpy.int64(2), 8, 8).variant)

    def test_biases_of_gate_and_up_come_together(self) -> None:
        w = torch.randn(16, 8), torch.randn(16, 8), torch.randn(8, 16)
        for m in (0, 2):
            with self.assertRaisesRegex(ValueError, "b_up: got none, wanted both biases"):
                ops.mlp(torch.randn(m, 8), *w, b_gate=torch.ones(16))

    def test_a_weight_of_one_row_is_traced_as_it_runs(self) -> None:
        def shape() -> torch.Size:
            return ops.linear(torch.ones(4, 8), torch.ones(8)).shape

        with FakeTensorMode():
            traced = shape()
        self.assertEqual(traced, shape())

    def test_a_norm_takes_the_same_with_gradients(self) -> None:
        x, weight = torch.randn(4, 8), torch.randn(8)
        residual = torch.randn(2, 2, 8)
        trained = x.clone().requires_grad_()
        for a in (x, trained):
            with self.assertRaises(ValueError):
                ops.norm(a, torch.ones(8, dtype=torch.int))
            with self.assertRaises(ValueError):
                ops.norm(a[:, :0], torch.ones(0))
        alike(ops.norm(trained, weight[None])[0], ops.norm(x, weight[None])[0])
        alike(ops.norm(trained, weight, residual)[0], ops.norm(x, weight, residual)[0])

    def test_a_wrong_library_folder_is_named(self) -> None:
        with mock.patch.dict("os.environ", {"SLUICE_LIBRARY_DIR": "/nope"}):
            self.assertEqual(capi.without_operators(), "SLUICE_LIBRARY_DIR names /nope")


if __name__ == "__main__":
    unittest.main()
