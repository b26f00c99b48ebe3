# SPDX-License-Identifier: Apache-2.0
"""Linear layers of one input by one product: which a ``forward`` has, and ``sluice.patch(linears=True)`` on them."""

import copy
import functools
import inspect
import tempfile
import unittest
import weakref
from collections.abc import Callable
from types import FunctionType
from unittest import mock

import torch
from safetensors.torch import load_file
from test_modules import TOKENS, randomise, small_model
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaAttention

import sluice
from sluice.serving import operators
from sluice.siblings import at_once, siblings_of


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, n) for n in (8, 4, 4))


class Plain(Layers):
    def forward(self, x: Tensor, scale: float = 2.0, *, more: "Tensor | None" = None) -> Tensor:
        shape = x.shape
        q = self.q(x).view(*shape[:-1], 8)
        k, v = self.k(x), self.v(x) * scale
        return q + torch.cat([k, v], -1) + (0 if more is None else more)


class Rebound(Layers):
    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        x = x + 1
        return q + torch.cat([self.k(x), self.v(x)], -1)


class Written(Layers):
    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        x.add_(1)
        k = self.k(x)
        if self.training:
            x = -x
        return q + torch.cat([k, self.v(x)], -1)


class Conditional(Layers):
    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        k = self.k(x) if self.training else q[..., :4]
        return q + torch.cat([k, self.v(x)], -1)


class Aliased(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = x.view(-1, 8)
        q = self.q(x)
        h.add_(1)
        return q + torch.cat([self.k(x), self.v(x)], -1)


class Increased(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h, q = x, self.q(x)
        h += 1
        return q + torch.cat([self.k(x), self.v(x)], -1)


class Stored(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = x[..., :4]
        q = self.q(x)
        h[:] = 0
        k = self.k(x)
        torch.mul(h, 2, out=h)
        return q + torch.cat([k, self.v(x)], -1)


class Swapped(Layers):
    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        self.k = self.v
        return q + torch.cat([self.k(x), self.v(x)], -1)


class Nested(Layers):
    def forward(self, x: Tensor) -> Tensor:
        def bump() -> None:
            nonlocal x
            x = x + 1

        q = self.q(x)
        bump()
        return q + torch.cat([self.k(x), self.v(x)], -1)


class Matched(Layers):
    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        match x + 1:
            case x:
                pass
        return q + torch.cat([self.k(x), self.v(x)], -1)


class Backwards(Layers):
    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).view(-1, 4).view(*x.shape[:-1], 8)  # which a part of a longer row is not
        return torch.cat([q, self.k(x) * 2, self.v(x)], -1)


class Unsorted(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.q(x) * 2, self.k(x), self.v(x)], -1)


class Again(Layers):
    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q(x), self.k(x)
        x = x + 1
        return q + torch.cat([k, self.v(x)], -1) * self.q(x)


class Repeated(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.q(x) + self.q(x)


class Closed(Layers):
    def forward(self, x: Tensor) -> Tensor:
        assert super() is not None
        return self.q(x) + torch.cat([self.k(x), self.v(x)], -1)


def copied(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    twin = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def passed_on(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return functools.wraps(function)(lambda *arguments: function(*arguments))


class Wrapped(Layers):
    @passed_on
    def forward(self, x: Tensor) -> Tensor:
        return self.q(x) + torch.cat([self.k(x), self.v(x)], -1)


def lay_together(module: nn.Module, only: tuple[str, ...] = ()) -> nn.Module:
    """As ``patch`` lays them on a GPU: q's, k's and v's parameters one behind the other."""
    for parent in module.modules():
        for group in siblings_of(type(parent)):
            linears = [getattr(parent, name) for name in only or group.layers]
            for name in ("weight", "bias"):
                own = [getattr(linear, name) for linear in linears]
                if own[0] is not None:
                    whole = torch.cat([parameter.data for parameter in own])
                    for parameter, part in zip(own, whole.split([p.shape[0] for p in own])):
                        parameter.data = part
    return module


class Forms(unittest.TestCase):
    def test_which_layers_have_one_input(self) -> None:
        for kind, layers in (
            (Plain, [("q", "k", "v")]), (Rebound, [("k", "v")]), (Written, []), (Conditional, []), (Repeated, []),
            (Aliased, [("k", "v")]), (Increased, [("k", "v")]), (Stored, []), (Swapped, [("k", "v")]), (Nested, []),
            (Matched, [("k", "v")]), (Backwards, [("q", "k", "v")]), (Unsorted, [("q", "k", "v")]), (Closed, []),
            (Wrapped, []), (Again, [("q", "k"), ("v", "q")]),
            (LlamaAttention, [("q_proj", "k_proj", "v_proj")]),
        ):  # fmt: skip
            with self.subTest(kind.__name__):
                self.assertEqual([group.layers for group in siblings_of(kind)], layers)
        self.assertEqual(siblings_of(nn.Linear), ())

    def test_a_text_that_is_not_what_runs_is_left(self) -> None:
        text = inspect.getsource(Plain.forward)
        for edited, groups in ((text, 1), (text.replace("* scale", "* scale * 2"), 0)):
            with mock.patch("sluice.siblings.inspect.getsource", lambda _, edited=edited: edited):
                kind = type("Plain", (Plain,), {"forward": copied(Plain.forward)})
                self.assertEqual(len(siblings_of(kind)), groups)
        kind = type("Replaced", (Plain,), {})
        self.assertEqual(len(siblings_of(kind)), 1)
        kind.forward = Written.forward
        self.assertEqual(siblings_of(kind), ())

    def test_the_copy_computes_the_same(self) -> None:
        for kind in (Plain, Rebound, Aliased, Increased, Swapped, Matched, Backwards, Again):
            calls = []

            def products(x: Tensor, *layers: nn.Linear, calls: list = calls) -> tuple[Tensor, ...]:
                calls.append(layers)
                return tuple(layer(x) for layer in layers)

            module, x = kind(), torch.randn(3, 8)
            forward = at_once(kind, siblings_of(kind), products)
            self.assertTrue(torch.equal(forward(module, x.clone()), module(x.clone())))
            if kind is Again:
                forward = at_once(kind, siblings_of(kind)[:1], products)
                self.assertTrue(torch.equal(forward(module, x), module(x)))
            if kind is Plain:
                named = {"scale": 3.0, "more": torch.ones(3, 8)}
                self.assertTrue(torch.equal(forward(module, x, **named), module(x, **named)))
                self.assertEqual(calls[0], (module.q, module.k, module.v))
            self.assertEqual(forward.__qualname__, f"{kind.__name__}.forward")
            self.assertEqual(forward.__code__.co_filename, __file__)


class Operator(unittest.TestCase):
    def setUp(self) -> None:
        operators.load()
        operators.linear_calls.update(dict.fromkeys(operators.linear_calls, 0))

    def test_one_product_where_they_lie_together(self) -> None:
        whole, x = torch.randn(16, 8), torch.randn(2, 3, 8)
        apart = [part.clone() for part in whole.split([8, 4, 4])]
        wanted = x @ whole.T + torch.arange(16)
        for weights, calls in ((list(whole.split([8, 4, 4])), 1), (apart, 3), ([*whole.split(8)][::-1], 2)):
            operators.linear_calls["sluice"] = 0
            biases = list(torch.arange(16.0).split([w.shape[0] for w in weights]))
            if calls == 2:  # in another order than they lie
                biases = biases[::-1]
            y = torch.ops.sluice_serving.linears(x, weights, biases, False)
            self.assertEqual(operators.linear_calls["sluice"], calls)
            torch.testing.assert_close(y, wanted if calls != 2 else wanted.roll(8, -1))
        operators.linear_calls["sluice"] = 0
        biases = [bias.clone() for bias in torch.arange(16.0).split([8, 4, 4])]
        y = torch.ops.sluice_serving.linears(x, list(whole.split([8, 4, 4])), biases, False)
        self.assertEqual(operators.linear_calls["sluice"], 3)
        torch.testing.assert_close(y, wanted)
        torch.library.opcheck(
            torch.ops.sluice_serving.linears, (x, apart, [], True), test_utils=("test_schema", "test_faketensor")
        )

    def test_what_lies_together(self) -> None:
        whole = torch.randn(16, 8)
        self.assertTrue(torch.equal(operators.lie_together(list(whole.split([8, 4, 4]))), whole))
        self.assertIsNone(operators.lie_together([whole[:8], whole[9:]]))
        self.assertIsNone(operators.lie_together([whole[:8, :4], whole[8:, :4]]))
        self.assertIsNone(operators.lie_together([whole[:8], whole[8:].clone()]))
        self.assertIsNone(operators.lie_together([whole[:8], torch.randn(16, 8)[8:]]))
        self.assertIsNone(operators.lie_together([whole[:8], whole.view(-1)[64:].view(16, 4)]))


class Patch(unittest.TestCase):
    def setUp(self) -> None:
        operators.load()
        operators.linear_calls.update(dict.fromkeys(operators.linear_calls, 0))

    def test_models_give_their_logits_by_fewer_products(self) -> None:
        for kind in ("LlamaMLP", "Qwen2MLP", "Qwen3MLP"):  # Qwen2 has biases
            model = randomise(small_model(kind, num_key_value_heads=1))
            with self.subTest(kind), torch.no_grad():
                expected, state = model(TOKENS).logits, copy.deepcopy(model.state_dict())
                report = sluice.patch(lay_together(model), linears=True)
                self.assertEqual(len(report.linears), 9, report)
                self.assertEqual(report.linears["model.layers.1.self_attn.k_proj"], "16x32")
                torch.testing.assert_close(model(TOKENS).logits, expected)
                self.assertEqual(operators.linear_calls, {"sluice": 5, "stock": 0})
                self.assertEqual(list(model.state_dict()), list(state))
                for name, tensor in model.state_dict().items():
                    self.assertTrue(torch.equal(tensor, state[name]), name)
                self.assertEqual(set(sluice.patch(model, linears=True).linears_left.values()), {"patched already"})
                torch.testing.assert_close(copy.deepcopy(model)(TOKENS).logits, expected)
                report.undo()
                self.assertTrue(torch.equal(model(TOKENS).logits, expected))
                self.assertFalse([m for m in model.modules() if {"forward", "_sluice"} & set(vars(m))])
                operators.linear_calls["sluice"] = 0

    def test_a_cpu_leaves_weights_where_they_are(self) -> None:
        model = randomise(small_model())
        attention = model.model.layers[0].self_attn
        addresses = [p.data_ptr() for p in model.parameters()]
        sluice.patch(model, linears=True)
        self.assertEqual([p.data_ptr() for p in model.parameters()], addresses)
        self.assertNotIn("forward", vars(attention))
        self.assertIn("forward", vars(attention.q_proj))

    def test_a_saved_model_is_whole(self) -> None:
        model = randomise(small_model())
        state = copy.deepcopy(model.state_dict())
        sluice.patch(lay_together(model), linears=True)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            saved = load_file(f"{folder}/model.safetensors")
        for name, tensor in state.items():
            if name in saved:
                self.assertTrue(torch.equal(saved[name], tensor), name)
        self.assertGreaterEqual(len(saved), len(state) - 1)  # the head may be the embedding

    def test_what_changes_later_is_followed(self) -> None:
        module, x = lay_together(Plain()), torch.randn(3, 8)
        report = sluice.patch(module, linears=True)
        self.assertEqual(list(report.linears), ["q", "k", "v"])

        def own() -> Tensor:
            return Plain.forward(module, x)

        with torch.no_grad():
            torch.testing.assert_close(module(x), own())
            self.assertEqual(operators.linear_calls["sluice"], 1)
            module.k.weight.mul_(3)  # in place: still one product
            torch.testing.assert_close(module(x), own())
            self.assertEqual(operators.linear_calls["sluice"], 2)
            module.k.weight = nn.Parameter(torch.randn(4, 8))  # elsewhere: three
            torch.testing.assert_close(module(x), own())
            self.assertEqual(operators.linear_calls["sluice"], 5)
            module.k.weight, module.v.weight = (nn.Parameter(torch.randn(n, 8)) for n in (6, 2))
            module.k.bias, module.v.bias = (nn.Parameter(torch.randn(n)) for n in (6, 2))
            torch.testing.assert_close(module(x), own())
            self.assertEqual(operators.linear_calls["sluice"], 8)
            bias, module.k.bias = module.k.bias, None
            self.assertTrue(torch.equal(module(x), own()))
            module.k.bias = bias
            for change in (
                lambda: module.v.register_forward_hook(lambda *arguments: 2 * arguments[2]),
                lambda: setattr(module, "v", nn.Sequential(module.v)),
            ):
                change()
                self.assertTrue(torch.equal(module(x), own()))
            self.assertEqual(operators.linear_calls["sluice"], 8)

    def test_gradients_autocast_and_what_was_wrapped_are_torchs(self) -> None:
        module, x = lay_together(Plain()), torch.randn(3, 8)
        report = sluice.patch(module, linears=True)
        module(x).sum().backward()
        self.assertEqual(module.q.bias.grad.tolist(), [3.0] * 8)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            self.assertEqual(module(x).dtype, torch.bfloat16)
        with torch.no_grad(), self.assertRaises(RuntimeError):
            module(x.double())
        ours = module.forward
        module.forward = lambda *arguments: ours(*arguments)
        report.undo()
        with torch.no_grad():
            self.assertTrue(torch.equal(module(x), Plain.forward(module, x)))
        self.assertEqual(sum(operators.linear_calls.values()), 0)

    def test_any_view_of_a_result_is_one(self) -> None:
        module, x = lay_together(Backwards()), torch.randn(3, 5, 8)
        sluice.patch(module, linears=True)
        with torch.no_grad():
            torch.testing.assert_close(module(x), Backwards.forward(module, x))
            self.assertEqual(operators.linear_calls, {"sluice": 1, "stock": 0})
            x = torch.randn(13, 5, 8)  # more tokens than Sluice serves: the layers' own products
            self.assertTrue(torch.equal(module(x), Backwards.forward(module, x)))
            self.assertEqual(operators.linear_calls, {"sluice": 1, "stock": 0})

    def test_another_kind_of_layer_is_left_out(self) -> None:
        module, x = Plain(), torch.randn(3, 8)
        module.k = nn.Sequential(module.k)
        lay_together(module, ("q", "v"))
        with torch.no_grad():
            expected = module(x)
            report = sluice.patch(module, linears=True)
            # Nor are those on either side of it one product: it might write into their input.
            self.assertEqual(list(report.linears), ["q", "k.0", "v"])
            torch.testing.assert_close(module(x), expected)
            self.assertEqual(operators.linear_calls["sluice"], 3)

    def test_patching_again_and_undoing_the_first(self) -> None:
        module = lay_together(Plain())
        first = sluice.patch(module, linears=True)
        second = sluice.patch(module, linears=True)
        self.assertEqual(list(second.linears_left), ["q", "k", "v"])
        second.undo()
        self.assertIn("forward", vars(module))
        del module.forward  # as unpickling leaves it
        self.assertEqual(list(sluice.patch(module, linears=True).linears), ["q", "k", "v"])
        first.undo()
        self.assertNotIn("forward", vars(module))

    def test_layers_that_differ_are_apart(self) -> None:
        for change in (
            lambda m: m.k.double(), lambda m: setattr(m, "k", nn.Linear(8, 4, bias=False)),
            lambda m: m.k.register_forward_hook(lambda *_: None), lambda m: setattr(m, "k", nn.Identity()),
        ):  # fmt: skip
            module = lay_together(Plain())
            change(module)
            report = sluice.patch(module, linears=True)
            self.assertNotIn("forward", vars(module))
            self.assertIn("forward", vars(module.q))
            self.assertIn("v", report.linears)

    def test_compiles_without_a_break(self) -> None:
        module, x = lay_together(Plain()).requires_grad_(False), torch.randn(90, 8)
        sluice.patch(module, linears=True)
        torch._dynamo.reset()
        compiled = torch.compile(module, fullgraph=True, dynamic=True)
        for m, calls in ((5, 1), (90, 0), (3, 1)):
            operators.linear_calls["sluice"] = 0
            found = compiled(x[:m])
            self.assertEqual(operators.linear_calls["sluice"], calls)
            torch.testing.assert_close(found, module(x[:m]))
        own = nn.Linear.forward
        module.k.forward = lambda x: own(module.k, x) + 1
        torch.testing.assert_close(compiled(x[:5]), module(x[:5]))


class Joined(unittest.TestCase):
    """On a GPU ``patch`` moves parameters; here too, so that this runs without one."""

    def setUp(self) -> None:
        operators.load()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        everywhere = mock.patch("sluice.patching.JOINED", ("cpu", "cuda"))
        everywhere.start()
        self.addCleanup(everywhere.stop)

    def test_parameters_come_into_one_buffer_with_their_values(self) -> None:
        sizes = {"hidden_size": 512, "head_dim": 64, "num_attention_heads": 8, "num_key_value_heads": 2}
        model = randomise(small_model("Qwen2MLP", **sizes)).to(self.device, torch.bfloat16)
        tokens = TOKENS.to(self.device)
        with torch.no_grad():
            expected, state = model(tokens).logits, copy.deepcopy(model.state_dict())
            report = sluice.patch(model, linears=True)
            self.assertFalse(report.linears_left, report)
            for layer in model.model.layers:
                own = [getattr(layer.self_attn, name) for name in ("q_proj", "k_proj", "v_proj")]
                for name in ("weight", "bias"):
                    parameters = [getattr(linear, name) for linear in own]
                    self.assertIsNotNone(operators.lie_together(parameters))
                    elements = sum(p.numel() for p in parameters)
                    self.assertEqual(parameters[2].untyped_storage().nbytes(), 2 * elements)
            for name, tensor in model.state_dict().items():
                self.assertTrue(torch.equal(tensor, state[name]), name)
            operators.linear_calls.update(dict.fromkeys(operators.linear_calls, 0))
            torch.testing.assert_close(model(tokens).logits, expected, rtol=0.05, atol=0.05)
            self.assertEqual(sum(operators.linear_calls.values()), 2 * 2 + 1)

    def test_tied_weights_stay_tied_and_none_is_doubled(self) -> None:
        tied = Plain().to(self.device)
        tied.other = nn.Linear(8, 8).to(self.device)
        tied.other.weight = tied.q.weight
        old = weakref.ref(tied.q.weight.untyped_storage())
        before = torch.cuda.memory_allocated() if self.device.type == "cuda" else None
        sluice.patch(tied, linears=True)
        self.assertIn("forward", vars(tied))
        self.assertEqual(tied.other.weight.data_ptr(), tied.q.weight.data_ptr())
        if before is not None:
            self.assertLess(torch.cuda.memory_allocated(), before + 4096)
        self.assertIsNone(old())

    def test_what_is_no_buffer_of_its_own_stays(self) -> None:
        twice, part = Plain().to(self.device), Plain().to(self.device)
        twice.v.weight = twice.k.weight
        part.k.weight.data = torch.randn(8, 8, device=self.device)[:4]  # somebody else's
        with torch.inference_mode():
            inferred = Plain().to(self.device)
        for module in (twice, part, inferred):
            addresses = [parameter.data_ptr() for parameter in module.parameters()]
            sluice.patch(module, linears=True, prove=False)
            self.assertEqual([parameter.data_ptr() for parameter in module.parameters()], addresses)
            self.assertNotIn("forward", vars(module))

    def test_patching_in_inference_mode_leaves_a_model_that_trains(self) -> None:
        module, x = Plain().to(self.device), torch.randn(3, 8, device=self.device)
        with torch.inference_mode():
            sluice.patch(module, linears=True)
        self.assertIn("forward", vars(module))
        module(x).sum().backward()
        self.assertFalse([name for name, p in module.named_parameters() if p.grad is None])

    def test_a_second_patch_joins_what_was_parted(self) -> None:
        module, x = Plain().to(self.device), torch.randn(3, 8, device=self.device)
        sluice.patch(module, linears=True)
        module.double().float()
        operators.linear_calls["sluice"] = operators.linear_calls["stock"] = 0
        with torch.no_grad():
            for calls in (3, 1):
                self.assertTrue(torch.allclose(module(x), Plain.forward(module, x), atol=1e-5))
                self.assertEqual(sum(operators.linear_calls.values()), calls)
                operators.linear_calls["sluice"] = operators.linear_calls["stock"] = 0
                sluice.patch(module, linears=True)


if __name__ == "__main__":
    unittest.main()
