# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operators, one after another, checked against fp64 by Sluice's cases and bounds::

    python -m sluice.foreign examples/foreign/torch_eager.py --unfused --device cpu

``--unfused``, since eager code stores (and so rounds) the result of each operator: without it cases
in 16 bits fail.
"""

import math

import torch
import torch.nn.functional as F


def _one_type(problem) -> None:
    if len({problem.x_dtype, problem.w_dtype, problem.y_dtype}) > 1:
        raise NotImplementedError("eager operators mix no types")


def _activate(gate, v):
    if gate.activation == "silu":
        return F.silu(v) if gate.alpha == 1 else v * torch.sigmoid(gate.alpha * v)
    if gate.activation == "sigmoid":
        return torch.sigmoid(v if gate.alpha == 1 else gate.alpha * v)
    if gate.activation == "gelu_tanh":
        return F.gelu(v, approximate="tanh")
    if gate.activation == "gelu_erf":  # F.gelu doubles before it halves on some CPUs: 3e38 overflows
        wide = v if v.dtype is torch.float64 else v.float()
        return (wide * 0.5 * (1 + torch.erf(wide * math.sqrt(0.5)))).to(v.dtype)
    return {"relu": F.relu, "identity": lambda x: x}[gate.activation](v)


def _gated(gate, g, u):
    v = g if gate.gate_multiplier == 1 else gate.gate_multiplier * g
    if math.isfinite(gate.limit):
        v, u = v.clamp(max=gate.limit), u.clamp(-gate.limit, gate.limit)
    if gate.up_offset != 0:
        u = u + gate.up_offset
    h = _activate(gate, v) * u
    return h if gate.output_multiplier == 1 else gate.output_multiplier * h


def _token(problem, t):
    """x, or its norm; and the sum before the norm."""
    if problem.norm is None:
        return t.x, t.x
    r = t.x + t.x_residual if problem.norm.add else t.x
    if t.x_sum is not None:
        t.x_sum.copy_(r)
    wide = r.double() if r.dtype == torch.float64 else r.float()
    n = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + problem.norm.eps)
    return n.to(r.dtype) * (t.norm_weight + problem.norm.weight_offset), r


def _hidden(problem, t, x):
    g, u = F.linear(x, t.w_gate, t.b_gate), F.linear(x, t.w_up, t.b_up)
    if problem.save_g_u:
        t.g.copy_(g)
        t.u.copy_(u)
    return _gated(problem.gate, g, u)


def gate_mul(problem, t):
    t.h.copy_(_gated(problem.gate, t.g, t.u))


def gate_mul_grad(problem, t):
    g, u = (leaf.detach().clone().requires_grad_() for leaf in (t.g, t.u))
    h = _gated(problem.gate, g, u)
    dg, du = torch.autograd.grad(h, (g, u), t.dh)
    if t.h is not None:
        t.h.copy_(h.detach())
    t.dg.copy_(dg)
    t.du.copy_(du)


def gate_up(problem, t):
    _one_type(problem)
    t.h.copy_(_hidden(problem, t, _token(problem, t)[0]))


def down(problem, t):
    _one_type(problem)
    y = F.linear(t.h, t.w_down, t.b_down)
    t.y.copy_(y if t.residual is None else y + t.residual)


def mlp(problem, t):
    _one_type(problem)
    x, r = _token(problem, t)
    y = F.linear(_hidden(problem, t, x), t.w_down, t.b_down)
    residual = r if problem.residual == "norm_input" else t.residual
    t.y.copy_(y if residual is None else y + residual)
