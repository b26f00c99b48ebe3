# SPDX-License-Identifier: Apache-2.0
"""``sluice.jax`` on the CPU: values against the fp64 oracle, gradients against JAX's own of the plain form
in fp64, ``jit`` and ``vmap``, and what is refused."""

import importlib.util
import os
import subprocess
import sys
import unittest
from typing import Any

import torch
from cases import BITS, Oracle, Weights, worst

from sluice import Gate, capi

MISSING = [name for name in ("jax", "jaxlib") if importlib.util.find_spec(name) is None]
REASON = f"no {MISSING[0]} here" if MISSING else ""
if not REASON and not (capi.library_folder() / "sluice_jax.so").is_file():
    REASON = "Sluice was built without JAX operators"
if not REASON:
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    # JAX's own fp32 products on a GPU are TF32, and Sluice has no fp64 there.
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    from sluice import jax as ours

GATES = (
    Gate(),
    Gate.clamped_swiglu(),
    Gate("gelu_tanh"),
    Gate("gelu_erf", gate_multiplier=1.2, output_multiplier=0.5),
    Gate("relu"),
    Gate("sigmoid", alpha=1.3, up_offset=0.25),
    Gate("identity", limit=2.0),
)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def to_jax(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    return jnp.asarray(tensor.double().numpy()).astype(str(tensor.dtype).removeprefix("torch."))


def to_torch(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array.astype(jnp.float64)))


def plain(
    x: Any, w_gate: Any, w_up: Any, w_down: Any, b_gate: Any = 0.0, b_up: Any = 0.0, b_down: Any = 0.0,
    residual: Any = 0.0, gate: Gate = Gate(),
) -> Any:  # fmt: skip
    """The MLP by jnp."""
    return hidden(x @ w_gate.T + b_gate, x @ w_up.T + b_up, gate) @ w_down.T + b_down + residual


def hidden(g: Any, u: Any, gate: Gate) -> Any:
    alpha, limit, offset, of_gate, of_output = (  # as the library has them: in fp32
        float(np.float32(v))
        for v in (gate.alpha, gate.limit, gate.up_offset, gate.gate_multiplier, gate.output_multiplier)
    )
    act = {
        "silu": lambda v: v * jax.nn.sigmoid(alpha * v),
        "gelu_tanh": lambda v: jax.nn.gelu(v, approximate=True),
        "gelu_erf": lambda v: jax.nn.gelu(v, approximate=False),
        "relu": jax.nn.relu,
        "sigmoid": lambda v: jax.nn.sigmoid(alpha * v),
        "identity": lambda v: v,
    }[gate.activation]
    return of_output * act(jnp.minimum(of_gate * g, limit)) * (jnp.clip(u, -limit, limit) + offset)


@unittest.skipIf(REASON, REASON)
class Values(unittest.TestCase):
    def test_every_gate_and_type_at_odd_shapes(self) -> None:
        for dtype in DTYPES:
            for index, gate in enumerate(GATES):
                d, h, lead = ((37, 53, (2, 3)), (40, 96, (7,)), (8, 24, ()))[index % 3]
                with self.subTest(dtype=dtype, gate=gate, lead=lead):
                    weights = Weights(d, h, dtype, bias=index % 2 == 1)
                    x = weights.x(*lead)
                    oracle = Oracle(x, weights, gate)
                    given, w = to_jax(x), list(map(to_jax, weights.mlp()))
                    y = ours.mlp(given, *w, gate=gate)
                    self.assertEqual((y.shape, y.dtype), (given.shape, given.dtype))
                    self.assertLessEqual(worst(to_torch(y), oracle.y, oracle.y_bound), 1)
                    up = ours.gate_up(given, w[0], w[1], w[3], w[4], gate=gate)
                    self.assertLessEqual(worst(to_torch(up), oracle.h, oracle.h_bound), 1)

    def test_linear_and_gate_mul(self) -> None:
        weights = Weights(37, 53, torch.float32, bias=True)
        x, y0 = weights.x(5), weights.x(5, seed=3)
        h = Oracle(x, weights).h.float()
        y = ours.linear(*map(to_jax, (h, weights.w_down, weights.b_down, y0)))
        parts = h.double(), weights.w_down.double().T
        want = parts[0] @ parts[1] + weights.b_down.double() + y0.double()
        # 53 products and two sums, each rounded to fp32.
        magnitude = parts[0].abs() @ parts[1].abs() + weights.b_down.abs() + y0.abs()
        self.assertLessEqual(worst(to_torch(y), want, 56 * 2.0**-24 * magnitude), 1)
        g, u = to_jax(x), to_jax(y0)
        got, want = ours.gate_mul(g, u, gate=GATES[1]), hidden(g.astype("float64"), u, GATES[1])
        # The activation's evaluation and two products, a few units in the last place of fp32.
        bound = torch.from_numpy(np.array(10 * 2.0**-24 * abs(want)))
        self.assertLessEqual(worst(to_torch(got), torch.from_numpy(np.array(want)), bound), 1)

    def test_no_tokens(self) -> None:
        w = list(map(to_jax, Weights(8, 24, torch.bfloat16, bias=True).mlp()))
        x = jnp.zeros((3, 0, 8), jnp.bfloat16)
        self.assertEqual(ours.mlp(x, *w).shape, (3, 0, 8))
        dx, dw = jax.grad(lambda x, w0: ours.mlp(x, w0, *w[1:]).sum(), (0, 1))(x, w[0])
        self.assertEqual(dx.shape, x.shape)
        self.assertEqual((dw.shape, float(abs(dw).max())), (w[0].shape, 0.0))

    def test_vmap_folds_tokens_and_loops_over_weights(self) -> None:
        weights = Weights(8, 24, torch.float32)
        x, w = to_jax(weights.x(4, 3)), [to_jax(t) for t in weights.mlp()[:3]]
        whole = ours.mlp(x, *w)
        over_tokens = jax.vmap(ours.mlp, (0, None, None, None))
        self.assertTrue((over_tokens(x, *w) == whole).all())
        self.assertEqual(jax.jit(over_tokens).lower(x, *w).as_text().count("@sluice"), 1)
        residual = jax.vmap(lambda x, r: ours.mlp(x, *w, residual=r), (0, None))(x, x[0])
        self.assertTrue((residual == ours.mlp(x, *w, residual=jnp.broadcast_to(x[0], x.shape))).all())
        several = jnp.stack([w[0], 2 * w[0]])
        got = jax.vmap(ours.mlp, (None, 0, None, None))(x, several, *w[1:])
        for part, one in zip(got, several):
            self.assertTrue((part == ours.mlp(x, one, *w[1:])).all())
        each = jax.vmap(jax.grad(lambda x, w0: ours.mlp(x, w0, *w[1:]).sum(), 1), (0, None))(x, w[0])
        one = jax.grad(lambda w0: ours.mlp(x[2], w0, *w[1:]).sum())(w[0])
        self.assertTrue((each[2] == one).all())


@unittest.skipIf(REASON, REASON)
class Gradients(unittest.TestCase):
    def check(self, function: Any, plain_form: Any, tensors: list[torch.Tensor], bound: float) -> None:
        """Gradients of a weighted sum, relative to the norm of each: of fp64 by JAX."""
        arrays = list(map(to_jax, tensors))
        wide = [a.astype(jnp.float64) for a in arrays]
        of_all = tuple(range(len(arrays)))
        y = plain_form(*wide)
        weight = jnp.asarray(np.random.default_rng(5).standard_normal(y.shape)).astype(arrays[0].dtype)

        def gradient(f: Any, which: Any) -> Any:
            return jax.grad(lambda *a: (f(*a).astype(jnp.float64) * weight).sum(), which)

        want = gradient(plain_form, of_all)(*wide)
        for name, f in (("eager", gradient(function, of_all)), ("jit", jax.jit(gradient(function, of_all)))):
            for index, (got, one) in enumerate(zip(f(*arrays), want)):
                self.assertEqual((got.shape, got.dtype), (arrays[index].shape, arrays[index].dtype))
                error = jnp.linalg.norm(got.astype(jnp.float64) - one) / jnp.linalg.norm(one)
                self.assertLessEqual(float(error), bound, f"{name}, argument {index}")
        for index, one in enumerate(want):  # alone, where other gradients are left out
            error = gradient(function, index)(*arrays).astype(jnp.float64) - one
            self.assertLessEqual(float(jnp.linalg.norm(error) / jnp.linalg.norm(one)), bound, index)

    def test_mlp_and_gate_up(self) -> None:
        d, h, m = 21, 35, 6
        for dtype in (*DTYPES, torch.float64):
            # Relative to the norm: what is stored (g, u, h, dh, dg, du, the result) is rounded, each of which
            # the activation's slope carries on; sums of m + d + h products.
            unit, sum_ = 2.0 ** -BITS[dtype], 2.0 ** (-53 if dtype == torch.float64 else -24)
            bound = 8 * unit + (m + d + h) * sum_
            for index, gate in enumerate(GATES):
                if gate.limit < 5:
                    continue  # inputs near the clamp's kinks round to its other side
                recompute = index % 2 == 1
                with self.subTest(dtype=dtype, gate=gate, recompute=recompute):
                    weights = Weights(d, h, dtype, bias=True)
                    x, residual = weights.x(2, 3), weights.x(2, 3, seed=2)
                    self.check(
                        lambda *a, g=gate, r=recompute: ours.mlp(*a, gate=g, recompute=r),
                        lambda *a, g=gate: plain(*a, gate=g),
                        [x, *weights.mlp(), residual], bound,
                    )  # fmt: skip
                    self.check(
                        lambda *a, g=gate, r=recompute: ours.gate_up(*a, gate=g, recompute=r),
                        lambda x, wg, wu, bg, bu, g=gate: hidden(x @ wg.T + bg, x @ wu.T + bu, g),
                        [x, *weights.gate_up()], bound,
                    )  # fmt: skip

    def test_linear_and_gate_mul(self) -> None:
        weights = Weights(21, 35, torch.float32, bias=True)
        x, r = weights.x(4), weights.x(4, seed=2)
        bound = (8 + 21 + 35 + 4) * 2.0**-24
        self.check(
            ours.linear, lambda h, w, b, r: h @ w.T + b + r,
            [Oracle(x, weights).h.float(), weights.w_down, weights.b_down, r], bound,
        )  # fmt: skip
        self.check(ours.gate_mul, lambda g, u: hidden(g, u, Gate()), [x, r], bound)

    def test_weights_of_a_wider_type_keep_it(self) -> None:
        weights = Weights(8, 24, torch.float32)
        x = jnp.asarray(weights.x(4).numpy() * 1e-4, jnp.float16)  # u is stored in fp16
        h = jnp.ones((4, 24), jnp.float16)
        big = [to_jax(t * 1e6) for t in (weights.w_gate, weights.w_up, weights.w_down)]
        small = jnp.full((4, 8), 1e-4, jnp.float16)
        for of, wrt, dy in (
            (lambda h: ours.linear(h, big[2]), h, small),
            (lambda x: ours.gate_up(x, big[0] * 1e-6, big[1]), x, jnp.full((4, 24), 1e-4, jnp.float16)),
        ):
            _, pull = jax.vjp(of, wrt)
            self.assertTrue(bool(jnp.isfinite(pull(dy)[0].astype(jnp.float32)).all()))

    def test_what_is_not_asked_for_is_not_computed(self) -> None:
        weights = Weights(8, 24, torch.float32)
        x, w = to_jax(weights.x(4)), [to_jax(t) for t in weights.mlp()[:3]]
        text = jax.jit(jax.grad(lambda x: ours.mlp(x, *w).sum())).lower(x).as_text()
        gradient = [line for line in text.splitlines() if "@sluice" in line][-1]
        self.assertEqual(gradient.rpartition("->")[2].count("tensor<"), 1, gradient)

    def test_second_and_forward_derivatives_are_refused(self) -> None:
        w = [to_jax(t) for t in Weights(8, 24, torch.float32).mlp()[:3]]
        x = jnp.ones((2, 8), jnp.float32)
        with self.assertRaisesRegex(TypeError, "forward-mode"):
            jax.jvp(lambda x: ours.mlp(x, *w), (x,), (x,))
        with self.assertRaises((TypeError, ValueError, NotImplementedError)):
            jax.grad(lambda x: jax.grad(lambda x: ours.mlp(x, *w).sum())(x).sum())(x)


@unittest.skipIf(REASON, REASON)
class Refused(unittest.TestCase):
    def test_errors_name_the_operand(self) -> None:
        w = [to_jax(t) for t in Weights(8, 24, torch.float32, bias=True).mlp()]
        w_gate, w_up, w_down, b_gate, _, _ = w
        x = jnp.ones((2, 8), jnp.float32)
        for message, call in (
            (r"^w_gate: expected shape \[24, 8\], got \[24, 7\]", lambda: ours.mlp(x, w_gate[:, :7], w_up, w_down)),
            (r"^w_up: expected shape \[24, 8\], got \[1, 24, 8\]", lambda: ours.mlp(x, w_gate, w_up[None], w_down)),
            (r"^w_down: expected shape \[8, 24\], got \[24, 8\]", lambda: ours.mlp(x, w_gate, w_up, w_down.T)),
            (r"^w_up: expected float32, got bfloat16", lambda: ours.mlp(x, w_gate, w_up.astype("bfloat16"), w_down)),
            (r"^x: expected one of bfloat16, .*, got int32", lambda: ours.mlp(x.astype("int32"), *w)),
            (r"^x: expected at least one dimension", lambda: ours.mlp(x[0, 0], *w)),
            (r"^b_up: got none, wanted one with b_gate", lambda: ours.gate_up(x, w_gate, w_up, b_gate)),
            (r"^residual: expected shape \[2, 8\], got \[8\]", lambda: ours.mlp(x, *w, residual=x[0])),
            (r"^u: expected shape \[2, 8\], got \[2, 7\]", lambda: ours.gate_mul(x, x[:, :7])),
        ):  # fmt: skip
            with self.assertRaisesRegex(ValueError, message):
                call()
        with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "gate.alpha: got 2.0"):
            jax.block_until_ready(ours.mlp(x, *w, gate=Gate("relu", alpha=2.0)))

    def test_the_import_says_what_is_missing(self) -> None:
        for code, message in (
            ("import sys; sys.modules['jax'] = None; import sluice.jax", "ImportError: sluice.jax needs JAX"),
            ("import sluice.jax", "ImportError: /nowhere/sluice_jax.so is not there: .*without JAX operators"),
        ):
            done = subprocess.run(
                [sys.executable, "-c", code], env={**os.environ, "SLUICE_LIBRARY_DIR": "/nowhere"},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, message)


@unittest.skipIf(REASON, REASON)
class OnGpu(unittest.TestCase):
    def test_as_on_the_cpu(self) -> None:
        try:
            gpu = jax.devices("cuda")[0]
        except RuntimeError:
            self.skipTest("JAX has no CUDA device")
        for dtype in (torch.bfloat16, torch.float16):
            weights = Weights(64, 96, dtype)
            x = weights.x(5)
            oracle = Oracle(x, weights)
            given = [jax.device_put(to_jax(t), gpu) for t in (x, *weights.mlp()[:3])]
            for _ in range(3):  # the header is zeroed once
                self.assertLessEqual(worst(to_torch(ours.mlp(*given)), oracle.y, oracle.y_bound), 1)


if __name__ == "__main__":
    unittest.main()
