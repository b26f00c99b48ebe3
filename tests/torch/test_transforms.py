# SPDX-License-Identifier: Apache-2.0
"""The operators and patched modules under functorch and forward-mode differentiation: the right derivative, or
an error, and never a zero."""

import unittest

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

import sluice
from sluice import ops
from sluice.nn import GatedMLP

D, H = 32, 48


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, T = normal(4, D), normal(4, D, seed=1)
WEIGHTS = normal(H, D, seed=2), normal(H, D, seed=3), normal(D, H, seed=4)
OPERATORS = {
    "mlp": lambda x: ops.mlp(x, *WEIGHTS),
    "gate_up": lambda x: ops.gate_up(x, *WEIGHTS[:2]),
    "down": lambda x: ops.down(x, WEIGHTS[0]),
    "gate_mul": lambda x: ops.gate_mul(x, x),
    "norm": lambda x: ops.norm(x, torch.ones(D))[0],
    "norm_mlp": lambda x: ops.norm_mlp(x, torch.ones(D), *WEIGHTS)[0],
}


class ForwardMode(unittest.TestCase):
    def test_a_tangent_is_refused_and_not_lost(self):
        for name, op in OPERATORS.items():
            with self.subTest(name):
                with self.assertRaisesRegex(NotImplementedError, "no derivative in forward mode"):
                    jvp(op, (X,), (T,))
                with forward_ad.dual_level(), torch.no_grad():
                    with self.assertRaisesRegex(NotImplementedError, "no derivative in forward mode"):
                        op(forward_ad.make_dual(X, T))
                    self.assertEqual(op(X).shape[0], 4)  # without one

    def test_a_patched_model_gives_its_own_derivatives(self):
        torch.manual_seed(0)
        own = nn.Sequential(
            LlamaMLP(LlamaConfig(hidden_size=D, intermediate_size=H)), nn.Linear(D, 8)
        ).requires_grad_(False)
        want = jvp(own, (X,), (T,))[1], grad(lambda x: own(x).sum())(X)
        sluice.patch(own, linears=True)
        torch.testing.assert_close(jvp(own, (X,), (T,))[1], want[0])
        torch.testing.assert_close(grad(lambda x: own(x).sum())(X), want[1])
        with forward_ad.dual_level():
            got = forward_ad.unpack_dual(own(forward_ad.make_dual(X, T))).tangent
        torch.testing.assert_close(got, want[0])


class Batched(unittest.TestCase):
    def test_gradients_reach_what_vmap_has_batched(self):
        for name, op in OPERATORS.items():
            with self.subTest(name):
                together, apart = (X.clone().requires_grad_() for _ in range(2))
                vmap(op)(together).square().sum().backward()
                op(apart).square().sum().backward()
                torch.testing.assert_close(together.grad, apart.grad, rtol=1e-4, atol=1e-4)

    def test_an_ensemble_of_modules_learns(self):
        models = [GatedMLP(8, 16) for _ in range(3)]
        parameters, _ = stack_module_state(models)
        x = torch.ones(5, 8)
        vmap(lambda p: functional_call(models[0], p, (x,)))(parameters).sum().backward()
        for i, model in enumerate(models):
            model(x).sum().backward()
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(parameters[name].grad[i], parameter.grad, rtol=1e-4, atol=1e-4)


class Compiled(unittest.TestCase):
    """The same of what Dynamo traces, whose fakes tell nothing of the levels around them."""

    def compiled(self, function):
        torch._dynamo.reset()
        return torch.compile(function, backend="aot_eager")

    def test_no_derivative_is_lost(self):
        for name, op in OPERATORS.items():
            with self.subTest(name), self.assertRaisesRegex(NotImplementedError, "in forward mode"):
                self.compiled(lambda x, op=op: jvp(op, (x,), (T,))[1])(X)
            loss = lambda x, op=op: op(x).square().sum()  # noqa: E731
            with self.subTest(name, way="grad"):
                if name == "norm":
                    torch.testing.assert_close(self.compiled(grad(loss))(X), grad(loss)(X))
                    continue
                with self.assertRaisesRegex(RuntimeError, "functorch transforms"):
                    self.compiled(grad(loss))(X)

    def test_gradients_reach_what_vmap_has_batched(self):
        together, apart = (X.clone().requires_grad_() for _ in range(2))
        self.compiled(vmap(OPERATORS["mlp"]))(together).square().sum().backward()
        OPERATORS["mlp"](apart).square().sum().backward()
        torch.testing.assert_close(together.grad, apart.grad, rtol=1e-4, atol=1e-4)

    def test_a_patched_model_gives_its_own_derivatives(self):
        own = LlamaMLP(LlamaConfig(hidden_size=D, intermediate_size=H)).requires_grad_(False)
        loss = lambda x: own(x).square().sum()  # noqa: E731
        want = grad(loss)(X)
        sluice.patch(own)
        torch.testing.assert_close(self.compiled(grad(loss))(X), want)


if __name__ == "__main__":
    unittest.main()
