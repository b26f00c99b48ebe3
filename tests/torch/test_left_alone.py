# SPDX-License-Identifier: Apache-2.0
"""What ``sluice.patch`` leaves alone or gives back to a module's own forward: other shapes, activations that
were hooked or replaced, sharded parameters, calls whose result nobody reads; and models that were pickled."""

import copy
import functools
import io
import pickle
import unittest
from unittest import mock

import torch
import torch.nn.utils.prune as prune
from torch import nn
from transformers import LlamaConfig
from transformers.models.idefics2.modeling_idefics2 import Idefics2MLP
from transformers.models.llama.modeling_llama import LlamaMLP

import sluice
import sluice.nn as nn_module
from sluice.nn import GatedMLP
from sluice.patching import ACTIVATIONS

X = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))


def llama(kind: type = LlamaMLP, **options: bool) -> nn.Sequential:
    """One MLP [32, 64], the same each time."""
    torch.manual_seed(0)
    model = nn.Sequential(kind(LlamaConfig(hidden_size=32, intermediate_size=64, **options)))
    return model.requires_grad_(False)


class Counting(nn.SiLU):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Dead(LlamaMLP):
    def __init__(self, config):
        super().__init__(config)
        self.meter = nn.Identity()

    def forward(self, x):
        g = self.act_fn(self.gate_proj(x))
        _ = self.meter(g)
        return self.down_proj(g * self.up_proj(x))


class Dropped(LlamaMLP):
    def __init__(self, config):
        super().__init__(config)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        return self.down_proj(self.dropout(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


class InPlace(LlamaMLP):
    def forward(self, x):
        y = x.mul_(2.0)  # noqa: F841
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class InPlaceActivation(nn.Module):
    """q and k of one input, which the activation between them changes."""

    def __init__(self):
        super().__init__()
        weights = torch.randn(16, 8)
        self.act = nn.ReLU(inplace=True)
        self.q, self.k = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.q.weight, self.k.weight = nn.Parameter(weights[:8]), nn.Parameter(weights[8:])

    def forward(self, x):
        a = self.q(x)
        b = self.act(x)
        return a + b + self.k(x)


class LeftAlone(unittest.TestCase):
    def same(self, model: nn.Module, want: torch.Tensor, x: torch.Tensor = X) -> None:
        torch.testing.assert_close(model(x), want, rtol=1e-5, atol=1e-6)

    def test_a_down_of_another_width(self):
        model = nn.Sequential(
            Idefics2MLP(hidden_size=24, intermediate_size=48, output_size=40, hidden_act="silu")
        )
        x = torch.randn(5, 24)
        want = model(x)
        self.assertIn("down is [40, 48], wanted [24, 48]", str(sluice.patch(model)))
        self.same(model, want, x)

    def test_projections_without_rows_or_with_one_bias(self):
        model = llama(mlp_bias=True)
        sluice.patch(model)
        model[0].up_proj.bias = None
        self.same(model, LlamaMLP.forward(model[0], X))
        empty = llama()
        for name in ("gate_proj", "up_proj"):
            setattr(empty[0], name, nn.Linear(32, 0, bias=False))
        empty[0].down_proj = nn.Linear(0, 32, bias=False)
        self.assertEqual(len(sluice.patch(empty).patched), 0)

    def test_an_activation_that_is_hooked_or_replaced(self):
        def hook(part):
            part.act_fn.register_forward_hook(lambda *given: given[2] * 0.5)

        def before(part):
            part.act_fn.register_forward_pre_hook(lambda _, given: (given[0] * 0.5,))

        def replace(part):
            part.act_fn = nn.ReLU()

        def forward(part):
            part.act_fn.forward = torch.relu

        sluice.patch(llama())  # whose comparison is kept
        for change in (hook, before, replace, forward):
            for first in (True, False):
                with self.subTest(change.__name__, first=first):
                    model = llama()
                    if first:
                        change(model[0])
                    result = sluice.patch(model)
                    if not first:
                        change(model[0])
                    own = llama()
                    change(own[0])
                    self.same(model, own(X))
                    self.assertEqual(len(result.patched), int(not first or change is replace))

    def test_a_dropout_that_is_something_else(self):
        model = llama(Dropped)
        self.assertEqual(len(sluice.patch(model).patched), 1)
        model[0].dropout.register_forward_hook(lambda *given: given[2] * 0.5)
        self.same(model, Dropped.forward(model[0], X))
        del model[0].dropout
        model[0].dropout = lambda h: h * 0.25
        self.same(model, Dropped.forward(model[0], X))

    def test_sharded_parameters_are_named(self):
        model = llama()
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.data = torch.empty(0)
        result = sluice.patch(model, linears=True)
        self.assertIn("gate_proj.weight is no matrix", str(result))
        self.assertIn("weight is no matrix with elements", str(result))

    def test_calls_whose_result_nobody_reads(self):
        for kind, what in ((Dead, "self.meter"), (InPlace, "x.mul_")):
            self.assertIn(f"calls {what} and returns nothing of it", str(sluice.patch(llama(kind))))

    def test_the_comparison_leaves_a_models_own_parts_as_they_are(self):
        model = llama()
        model[0].act_fn = Counting()
        with mock.patch.dict(ACTIVATIONS, {f"{__name__}.Counting": "silu"}):
            self.assertEqual(len(sluice.patch(model).patched), 1)
        self.assertEqual(int(model[0].act_fn.calls), 0)

    def test_a_layer_between_two_of_one_input(self):
        model, x = InPlaceActivation(), torch.randn(3, 8)
        with torch.no_grad():
            want = model(x.clone())
            sluice.patch(model, linears=True)
            self.same(model, want, x.clone())

    def test_one_layer_that_is_not_finite_condemns_no_other(self):
        bad, good = (nn.Sequential(nn.Linear(40, 72)) for _ in range(2))
        with torch.no_grad():
            bad[0].weight.fill_(float("nan"))
        self.assertIn("its weights are not finite", str(sluice.patch(bad, linears=True)))
        self.assertEqual(list(sluice.patch(good, linears=True).linears), ["0"])


class Adapter(nn.Module):
    """As LoRA's wrappers, which have the weight of the layer that they wrap."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base
        self.scale = nn.Parameter(torch.tensor(1.5))

    @property
    def weight(self):
        return self.base.weight

    def forward(self, x):
        return self.scale * self.base(x)


class OwnModule(unittest.TestCase):
    """GatedMLP calls its projections where they are more than their weights."""

    def want(self, mlp: GatedMLP, x: torch.Tensor) -> torch.Tensor:
        g, u = mlp.gate_up_proj(x).chunk(2, -1) if mlp.merged else (mlp.gate_proj(x), mlp.up_proj(x))
        return mlp.down_proj(nn.functional.silu(g) * u)

    def test_adapters_pruning_and_hooks_count(self):
        def adapt(mlp, name):
            setattr(mlp, name, Adapter(getattr(mlp, name)))

        def hook(mlp, name):
            getattr(mlp, name).register_forward_hook(lambda *given: given[2] * 0.5)

        def cut(mlp, name):
            prune.l1_unstructured(getattr(mlp, name), "weight", amount=0.5)

        for merged in (False, True):
            for name in ("gate_up_proj" if merged else "up_proj", "down_proj"):
                for change in (adapt, hook, cut):
                    with self.subTest(change.__name__, name=name):
                        mlp = GatedMLP(32, 48, merged=merged, bias=True)
                        change(mlp, name)
                        for _ in range(2):  # a pruned weight is made anew for each step
                            y = mlp(X, residual=X)
                            torch.testing.assert_close(y, self.want(mlp, X) + X, rtol=1e-4, atol=1e-5)
                            y.sum().backward()
                        if change is adapt:
                            self.assertIsNotNone(getattr(mlp, name).scale.grad)
        mlp.group = "ranks"
        whole = GatedMLP(32, 48)
        sluice.patch(whole, linears=True)
        with mock.patch.object(GatedMLP, "_by_parts", side_effect=AssertionError):
            whole(X)  # its layers may be Sluice's too
        with self.assertRaisesRegex(ValueError, "no plain nn.Linear"):
            mlp(X)

    def test_a_projection_that_is_wrapped_after_it_was_patched_counts(self):
        mlp = GatedMLP(32, 48).requires_grad_(False)
        sluice.patch(mlp, linears=True)
        patched = mlp.up_proj.forward
        mlp.up_proj.forward = functools.wraps(patched)(lambda x: 2 * patched(x))
        torch.testing.assert_close(mlp(X), self.want(mlp, X))
        self.assertEqual(nn_module._is_plain(mlp.down_proj), True)
        read = pickle.loads(pickle.dumps(mlp.down_proj))
        self.assertIn("forward", read.__dict__)
        self.assertTrue(nn_module._is_plain(read))


class Inputs(unittest.TestCase):
    """What only a module's own forward takes, and what looks on at it."""

    def setUp(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(llama()[0], nn.Linear(32, 48)).requires_grad_(False)
        self.own = copy.deepcopy(self.model)
        sluice.patch(self.model, linears=True)

    def test_nested_and_sparse_tensors(self):
        parts = [X[:2], X[2:]]
        for layout in (torch.strided, torch.jagged):
            nested = torch.nested.nested_tensor(parts, layout=layout)
            for got, want in zip(self.model(nested).unbind(), self.own(nested).unbind()):
                torch.testing.assert_close(got, want)
        sparse = X.to_sparse()
        torch.testing.assert_close(self.model[1](sparse), self.own[1](sparse))

    def test_hooks_of_all_modules_see_the_projections(self):
        for register in (
            lambda see: nn.modules.module.register_module_forward_hook(lambda module, *_: see(module)),
            lambda see: nn.modules.module.register_module_forward_pre_hook(lambda module, *_: see(module)),
        ):
            seen = []
            handle = register(lambda module: seen.append(type(module)))
            try:
                self.model(X)
            finally:
                handle.remove()
            self.assertEqual(seen.count(nn.Linear), 4)


class Pickled(unittest.TestCase):
    def test_a_patched_model_is_read_as_one_that_was_not_and_patched_again(self):
        model = nn.Sequential(llama()[0], nn.Linear(32, 48)).requires_grad_(False)
        want = model(X)
        sluice.patch(model, linears=True)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        read = torch.load(file, weights_only=False)
        torch.testing.assert_close(read(X), want, rtol=0, atol=0)
        result = sluice.patch(read, linears=True)
        self.assertEqual((len(result.patched), len(result.linears)), (1, 1))
        torch.testing.assert_close(read(X), want, rtol=1e-5, atol=1e-6)
        result.undo()
        torch.testing.assert_close(read(X), want, rtol=0, atol=0)

    def test_a_deep_copy_stays_patched(self):
        model = llama()
        sluice.patch(model)
        twin = copy.deepcopy(model)
        self.assertIs(twin[0].forward.__func__, model[0].forward.__func__)
        self.assertIs(twin[0].forward.__self__, twin[0])


if __name__ == "__main__":
    unittest.main()
