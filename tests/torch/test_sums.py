# SPDX-License-Identifier: Apache-2.0
"""The vLLM plug-in on two ranks that speak by gloo: a decoder layer whose products and sums over ranks are Sluice's
gives what vLLM's own forward gives, by every way, and ranks never take different ones."""

import datetime
import functools
import os
import sys
import types
import unittest
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from engine_stub import D, H
from gloo_ranks import WORLD, run_ranks
from torch import Tensor, nn
import vllm_stub
from vllm_stub import ProjectedAttention, RowParallelLinear, stub

from sluice.serving import alike, layers, operators, reduced

GLOO = dist.is_available() and dist.is_gloo_available()


def sum_over_ranks(x: Tensor) -> Tensor:
    y = x.clone()
    dist.all_reduce(y)
    return y


def register(rank: int, mode: str, **environment: str) -> dict[str, types.ModuleType]:
    """The stub's modules, served by the plug-in in this process."""
    import sluice.vllm as plugin

    group = types.SimpleNamespace(
        ranks=list(range(WORLD)), rank_in_group=rank, unique_name="tp:0", device_group=dist.group.WORLD
    )
    modules = stub()
    vars(modules["vllm.distributed"]).update(
        tensor_model_parallel_all_reduce=sum_over_ranks, get_tp_group=lambda: group
    )
    vllm_stub.all_reduce = sum_over_ranks
    sys.modules.update(modules)
    os.environ.update({"SLUICE_VLLM": mode, **environment})
    with mock.patch("sluice.capi.variants", lambda backend: ("cuda.simt",)):
        plugin.register()
    return modules


def layer_of(modules: dict[str, types.ModuleType]) -> nn.Module:
    """A decoder layer of a rank, cut in two: weights differ between ranks, norms do not."""
    torch.manual_seed(dist.get_rank())
    kind = modules["vllm.model_executor.models.llama"].LlamaDecoderLayer
    layer = kind(attention=ProjectedAttention(WORLD), tp_size=WORLD).requires_grad_(False)
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        dist.broadcast(norm.weight, 0)
    return layer


def inputs(m: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(7)
    return torch.arange(m), *torch.randn(2, m, D).bfloat16()


def stock(layer: nn.Module, positions: Tensor, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """What vLLM's modules compute, by their formulas."""
    h, residual = layer.input_layernorm(x, residual)
    output = layer.self_attn.o_proj
    heads = torch.tanh(h[:, : output.weight.shape[1]])
    h, residual = layer.post_attention_layernorm(sum_over_ranks(heads @ output.weight.T), residual)
    h = layer.mlp.act_fn(h @ layer.mlp.gate_up_proj.weight.T)
    return sum_over_ranks(h @ layer.mlp.down_proj.weight.T), residual


def check_near(got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape, (got.shape, expected.shape)
    worst = (got - expected).abs().max() / expected.abs().max()
    assert worst < 8 * 2.0**-8, worst


def check_layer(layer: nn.Module, m: int) -> None:
    given = inputs(m)
    for residual in (given[2], None):
        y, r = layer(*given[:2], residual)
        expected = stock(layer, *given[:2], given[2]) if residual is not None else None
        if expected is None:  # the first layer: its norm has nothing to add
            zero = torch.zeros_like(given[1])
            expected = stock(layer, given[0], given[1], zero)
        check_near(y, expected[0])
        check_near(r, expected[1])
        every = [torch.empty_like(r) for _ in range(WORLD)]
        dist.all_gather(every, r)
        assert all(torch.equal(every[0], other) for other in every)


def check_force(rank: int) -> None:
    modules = register(rank, "force")
    layer = layer_of(modules)
    assert layer.sluice_output == "o_proj" and layer.self_attn.o_proj.sluice_defers
    assert not layer.mlp.down_proj.sluice_defers
    for m in (1, 5, reduced.MOST_SUMMED + 1):
        check_layer(layer, m)
    assert reduced.calls == {"sluice": 10, "stock": 2}, reduced.calls  # linear layers above are vLLM's
    # An attention that somebody wrapped: the projection is not there, and vLLM's forward runs.
    before = dict(reduced.calls)

    class Wrapped(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base_layer = base

        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            base = self.base_layer
            return sum_over_ranks(base.quant_method.apply(base, x, None)), None

    plain = layer.self_attn.o_proj
    layer.self_attn.o_proj = Wrapped(plain)
    given = inputs(3)
    y, r = layer(*given)
    layer.self_attn.o_proj = plain
    expected = stock(layer, *given)
    check_near(y, expected[0])
    check_near(r, expected[1])
    assert reduced.calls["sluice"] == before["sluice"] + 1  # the MLP alone
    # A norm that somebody replaced, and a projection that has got a bias.
    class Doubled(type(layer.input_layernorm)):  # type: ignore[misc]
        def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
            n, r = super().forward(x, residual)
            return n * 2, r

    norm = layer.post_attention_layernorm
    layer.post_attention_layernorm = Doubled(D).requires_grad_(False)
    layer.post_attention_layernorm.load_state_dict(norm.state_dict())
    expected = stock(layer, *given)
    for got, want in zip(layer(*given), expected):
        check_near(got, want)
    layer.post_attention_layernorm = norm
    row = layer.self_attn.o_proj
    row.bias = nn.Parameter(torch.full((D,), float(rank == 0)).bfloat16(), requires_grad=False)
    h, r = layer.input_layernorm(*given[1:])
    heads = torch.tanh(h[:, : row.weight.shape[1]])
    _, r = layer.post_attention_layernorm(sum_over_ranks(heads @ row.weight.T + row.bias), r)
    check_near(layer(*given)[1], r)


def check_trace(rank: int) -> None:
    """One graph for every token count, as vLLM's compiler wants it, with the three operators in it."""
    modules = register(rank, "force")
    layer = layer_of(modules)
    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for m in (5, 7):
        given = inputs(m)
        for got, want in zip(compiled(*given), stock(layer, *given)):
            check_near(got, want)
    called = [name.split(".")[1] for name in names if name.startswith("sluice_serving.")]
    assert called == ["add_norm", "linear_reduce_norm", "mlp_reduce"], called


def check_rows(rank: int) -> None:
    """A row-parallel layer that stands alone, and those that stay vLLM's."""
    register(rank, "force")
    row = RowParallelLinear(D, H, tp_size=WORLD).requires_grad_(False)
    x = torch.randn(3, H).bfloat16()
    check_near(row(x)[0], sum_over_ranks(x @ row.weight.T))
    assert reduced.calls["sluice"] == 1
    for name, value in (("reduce_results", False), ("bias", nn.Parameter(torch.ones(D).bfloat16())),
                        ("input_is_parallel", False), ("quant_method", object.__new__(type("Q", (
                            type(row.quant_method),), {})))):  # fmt: skip
        was = getattr(row, name)
        setattr(row, name, value)
        row(x)
        assert reduced.calls["sluice"] == 1, name
        setattr(row, name, was)
    row.return_bias = False
    check_near(row(x), sum_over_ranks(x @ row.weight.T))


def check_left(rank: int) -> None:
    """vLLM's own passes, and the switch."""
    modules = register(rank, "force")
    modules["vllm.config"].get_current_vllm_config().compilation_config.pass_config.fuse_allreduce_rms = True
    with unittest.TestCase().assertLogs("vllm.sluice", "INFO") as logs:
        layer = layer_of(modules)
    assert "sums over ranks stay vLLM's: vLLM's compiler has a pass" in "".join(logs.output), logs.output
    assert not layer.sluice_output and not layer.self_attn.o_proj.sluice_defers
    check_layer(layer, 3)
    assert not reduced.calls


def check_off(rank: int) -> None:
    modules = register(rank, "force", SLUICE_VLLM_SUMS="off")
    layer = layer_of(modules)
    check_layer(layer, 3)
    assert not reduced.calls and operators.calls["sluice"] == 2


def check_ladder(rank: int) -> None:
    """Every way in turn is the fastest, on one rank alone: both take the one that the slowest rank says."""
    modules = register(rank, "auto")
    for best in ("sluice", "apart", "mixed", "stock"):
        reduced.calls.clear()
        operators.choices.clear()
        reduced._linear_choices.clear()
        order: list[str] = []

        def choose(self: operators.Choice, rows: Tensor, ways: dict[str, Any], best: str = best) -> None:
            for name, way in ways.items():
                way(1)  # all of them run on both ranks
                order.append(name)
                self.us[name] = [1.0 if name == best else 10.0]
            self.steps = [rows.shape[0]]

        with (
            mock.patch.object(reduced.SumChoice, "measure", choose),
            mock.patch.object(operators, "MEASURED", ("cpu",)),
        ):
            layer = layer_of(modules)
            check_layer(layer, 4)
        assert set(order) == {"sluice", "apart", "mixed", "stock"}
        expected = {best: 4} if best != "mixed" else {"mixed": 2, "stock": 2}
        assert reduced.calls == expected, (best, reduced.calls)


def check_failure(rank: int) -> None:
    """A way that fails on one rank is timed on none, and no sum is left half done."""
    modules = register(rank, "auto")
    layer = layer_of(modules)
    ran: list[str] = []

    def product(*operands: Any) -> Tensor:
        if rank == 0:
            raise torch.cuda.OutOfMemoryError("no room")
        return operators.MLP["stock"](*operands)

    def sampler(run: Any, between: Any, captured: bool, *_: Any) -> Any:
        run()
        ran.append("way")
        return lambda: 1.0

    with (
        mock.patch.dict(operators.MLP, mixed=product),
        mock.patch.object(operators, "_sampler", sampler),
        mock.patch.object(operators, "MEASURED", ("cpu",)),
        mock.patch.object(reduced, "MOST_SUMMED", 2),
    ):
        given = inputs(4)
        for got, want in zip(layer(*given), stock(layer, *given)):
            check_near(got, want)
    (choice,) = operators.choices.values()
    assert set(choice.us) == {"sluice", "apart", "stock"} and choice.tries == {}, choice
    assert choice.steps == [1, 2, 4] and choice.us["sluice"] == [1.0, 1.0, float("inf")], choice


def check_silence(rank: int) -> None:
    """Ranks that could not agree leave the sum to the engine."""
    register(rank, "auto")
    group = types.SimpleNamespace(ranks=list(range(WORLD)), rank_in_group=rank)
    operators.configure("auto", operators._log, lambda: group)

    def sampler(*_: Any) -> Any:
        return lambda us=times.pop(0): us

    choice = reduced.SumChoice("a sum", able={"sluice", "apart", "stock"})
    times = [1.0, 5.0, 10.0] * 9
    with (
        mock.patch.object(operators, "_sampler", sampler),
        mock.patch.object(alike, "PATIENCE", datetime.timedelta(seconds=0.5)),
    ):
        rows = torch.zeros(1 + rank, 8)  # they measure something else
        choice.measure(rows, dict.fromkeys(("sluice", "apart", "stock"), lambda m: None))
    assert choice.fastest(1) == "apart", choice
    dist.barrier()
    with mock.patch.object(alike, "PATIENCE", datetime.timedelta(seconds=0.5)):
        assert not operators.all_say("one that is silent", True) if rank == 0 else True
        dist.barrier()
    # A rank that leaves a module to the engine leaves it there on all.
    assert not operators.all_say("a doubt", rank == 0)
    assert operators.all_say("no doubt", True)


class LastProduct(unittest.TestCase):
    def test_the_projection_is_the_last_thing_and_nothing_else_uses_it(self) -> None:
        class Twice(ProjectedAttention):
            def forward(self, x: Tensor) -> Tensor:
                self.o_proj(x)
                output, _ = self.o_proj(x)
                return output

        class Scaled(ProjectedAttention):
            def forward(self, x: Tensor) -> Tensor:
                output, _ = self.o_proj(x)
                return output * 2

        class Early(ProjectedAttention):
            def forward(self, x: Tensor) -> Tensor:
                if x.shape[0] == 0:
                    return x
                output, _ = self.o_proj(x)
                return output

        self.assertEqual(layers.last_product(ProjectedAttention), "o_proj")
        def doubling(forward: Any) -> Any:
            return functools.wraps(forward)(lambda self, *given: 2 * forward(self, *given))

        class Wrapped(ProjectedAttention):
            @doubling
            def forward(self, x: Tensor) -> Tensor:
                output, _ = self.o_proj(x)
                return output

        for kind in (Twice, Scaled, Early, Wrapped, nn.Linear):
            self.assertIsNone(layers.last_product(kind), kind)


@unittest.skipUnless(GLOO, "no gloo")
class Sums(unittest.TestCase):
    def test_a_layer_by_sluices_sums(self) -> None:
        run_ranks(check_force)

    def test_traces_in_one_graph_for_every_token_count(self) -> None:
        run_ranks(check_trace)

    def test_rows_alone(self) -> None:
        run_ranks(check_rows)

    def test_vllms_own_passes_keep_the_sums(self) -> None:
        run_ranks(check_left)

    def test_the_switch(self) -> None:
        run_ranks(check_off)

    def test_every_way_gives_vllms_result(self) -> None:
        run_ranks(check_ladder)

    def test_a_way_that_fails_on_one_rank(self) -> None:
        run_ranks(check_failure)

    def test_ranks_that_cannot_agree(self) -> None:
        run_ranks(check_silence)


if __name__ == "__main__":
    unittest.main()
