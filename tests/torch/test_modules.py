# SPDX-License-Identifier: Apache-2.0
"""``GatedMLP`` and ``sluice.patch``, against the modules that they stand in for."""

import copy
import pickle
import unittest
from collections.abc import Callable
from types import MethodType
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig, modeling_llama
from transformers.models.mistral import MistralConfig
from transformers.models.phi3 import Phi3Config, modeling_phi3
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config
from transformers.models.smollm3 import SmolLM3Config
from transformers.models.t5gemma import T5GemmaModuleConfig, modeling_t5gemma

import sluice
from sluice import proof
from sluice.kept import keep, kept
from sluice.nn import GatedMLP
from sluice.patching import ACTIVATIONS
from sluice.serving import operators

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGS = {
    "LlamaMLP": (LlamaConfig, {"mlp_bias": True}, "silu"),
    "Qwen2MLP": (Qwen2Config, {}, "silu"),
    "Qwen3MLP": (Qwen3Config, {}, "silu"),
    "MistralMLP": (MistralConfig, {}, "silu"),
    "Gemma2MLP": (Gemma2Config, {}, "gelu_tanh"),
    "Gemma3MLP": (Gemma3TextConfig, {}, "gelu_tanh"),
    "Phi3MLP": (Phi3Config, {"rope_scaling": None}, "silu"),
    "SmolLM3MLP": (SmolLM3Config, {"mlp_bias": True}, "silu"),
}
TOKENS = torch.tensor([[5, 9, 33, 7, 60], [3, 3, 8, 21, 1]])


def small_model(kind: str = "LlamaMLP", **more: object) -> nn.Module:
    config, own, _ = CONFIGS[kind]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(**{**SMALL, **own, **more})).eval()


def mlps(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if type(m).__qualname__ in CONFIGS]


def randomise(model: nn.Module) -> nn.Module:
    """Weights large enough for an error of the MLPs to reach the logits, biases included."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            elif parameter.numel() == 48:
                parameter.normal_(std=0.5)
    return model


class Module(unittest.TestCase):
    def test_state_dicts_go_in_and_out_unchanged(self) -> None:
        llama = modeling_llama.LlamaMLP(LlamaConfig(**{**SMALL, "mlp_bias": True}))
        phi = modeling_phi3.Phi3MLP(Phi3Config(**{**SMALL, "rope_scaling": None}))
        x = torch.randn(2, 5, 32)
        for theirs, options in ((llama, {"bias": True}), (phi, {"merged": True})):
            ours = GatedMLP(32, 48, **options)
            ours.load_state_dict(theirs.state_dict())
            self.assertEqual(list(ours.state_dict()), list(theirs.state_dict()))
            torch.testing.assert_close(ours(x), theirs(x))
            torch.testing.assert_close(ours(x, residual=x), theirs(x) + x)
            torch.testing.assert_close(
                ours(x.transpose(0, 1)), theirs(x.transpose(0, 1))
            )

    def test_gradients_equal_the_eager_modules_both_ways(self) -> None:
        phi = modeling_phi3.Phi3MLP(Phi3Config(**{**SMALL, "rope_scaling": None}))
        x = torch.randn(2, 5, 32)
        phi(x).square().sum().backward()
        for recompute in (False, True):
            ours = GatedMLP(32, 48, merged=True, recompute=recompute)
            ours.load_state_dict(phi.state_dict())
            ours(x).square().sum().backward()
            for got, expected in zip(ours.parameters(), phi.parameters()):
                torch.testing.assert_close(got.grad, expected.grad)

    def test_an_activation_that_does_not_exist_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "^activation: got 'swish'"):
            GatedMLP(8, 8, gate="swish")


class Patch(unittest.TestCase):
    def test_every_family_gives_its_own_logits(self) -> None:
        for kind, (_, _, activation) in CONFIGS.items():
            model = randomise(small_model(kind))
            with self.subTest(kind), torch.no_grad():
                expected = model(TOKENS).logits
                result = sluice.patch(model)
                self.assertEqual(list(result.patched.values()), [kind, kind], result)
                self.assertEqual(result.left, {})
                settings = kept(mlps(model)[0]._sluice)
                self.assertEqual(settings.gate.activation, activation)
                torch.testing.assert_close(model(TOKENS).logits, expected)
                # It is Sluice that computed it: with the wrong gate the logits move.
                gate = settings.gate
                object.__setattr__(settings, "gate", sluice.Gate("relu", up_offset=1.0))
                self.assertFalse(torch.allclose(model(TOKENS).logits, expected))
                object.__setattr__(settings, "gate", gate)  # other models have the same settings
                result.undo()
                self.assertTrue(torch.equal(model(TOKENS).logits, expected))
                self.assertNotIn("forward", mlps(model)[0].__dict__)

    def test_the_activations_exist(self) -> None:
        for name in ACTIVATIONS:
            module, _, attribute = name.rpartition(".")
            imported = __import__(module, fromlist=[attribute])
            self.assertTrue(isinstance(getattr(imported, attribute), type), name)

    def test_training_a_patched_model_takes_the_same_step(self) -> None:
        models = [randomise(small_model()).train() for _ in range(2)]
        sluice.patch(models[1])
        for model in models:
            model(TOKENS, labels=TOKENS).loss.backward()
        for (name, expected), got in zip(models[0].named_parameters(), models[1].parameters()):
            torch.testing.assert_close(got.grad, expected.grad, msg=lambda m: f"{name}: {m}")

    def test_a_patched_model_converges_as_eager_does(self) -> None:
        models = [randomise(small_model()).train() for _ in range(2)]
        sluice.patch(models[1])
        curves = []
        for model in models:
            optimizer, curve = torch.optim.AdamW(model.parameters(), lr=3e-3), []
            for _ in range(40):
                optimizer.zero_grad()
                loss = model(TOKENS, labels=TOKENS).loss
                loss.backward()
                optimizer.step()
                curve.append(loss.detach())
            curves.append(torch.stack(curve))
        self.assertLess(curves[0][-1].item(), 0.1 * curves[0][0].item())
        torch.testing.assert_close(curves[1], curves[0], rtol=1e-3, atol=1e-4)

    def left(self, change: Callable[[nn.Module], object], expected: str) -> None:
        """``change`` makes the first MLP ineligible: it is left with the reason, the other not;
        and when it comes after patching, the module computes as before."""
        model = randomise(small_model())
        change(mlps(model)[0])
        with torch.no_grad():
            reference = model(TOKENS).logits
        result = sluice.patch(model)
        self.assertEqual(len(result.patched), 1, result)
        self.assertRegex(result.left["model.layers.0.mlp"], expected)
        self.assertRegex(str(result), "1 of 2 MLPs patched\nleft model.layers.0.mlp: " + expected)
        later = randomise(small_model())
        sluice.patch(later)
        change(mlps(later)[0])
        with torch.no_grad():
            torch.testing.assert_close(model(TOKENS).logits, reference)
            torch.testing.assert_close(later(TOKENS).logits, reference)

    def test_an_adapter_is_left_alone(self) -> None:
        class Adapter(nn.Linear):
            """As PEFT's: a projection that adds something of its own."""

            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + 1

        def adapt(mlp: nn.Module) -> None:
            adapter = Adapter(32, 48)
            adapter.load_state_dict(mlp.gate_proj.state_dict())
            mlp.gate_proj = adapter

        self.left(adapt, "gate_proj is .*Adapter, not torch.nn.Linear")

    def test_hooks_and_replaced_forwards_are_left_alone(self) -> None:
        def double(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            return 2 * output

        def replace(mlp: nn.Module) -> None:
            old = mlp.down_proj.forward
            mlp.down_proj.forward = lambda x: 3 * old(x)

        self.left(lambda mlp: mlp.up_proj.register_forward_hook(double), "up_proj has hooks")
        self.left(replace, r"down_proj\.forward was replaced")

    def test_other_tensors_than_dense_parameters_are_left_alone(self) -> None:
        class Sharded(nn.Parameter):
            """As a DTensor: a parameter that is not all there."""

        def shard(mlp: nn.Module) -> None:
            mlp.up_proj.weight = Sharded(mlp.up_proj.weight.detach())

        self.left(shard, "up_proj.weight is .*Sharded, not a dense parameter")

    def test_a_projection_without_a_weight_is_left_alone(self) -> None:
        class Packed(nn.Module):
            """As a quantised linear: its numbers have another name."""

            def __init__(self, linear: nn.Linear) -> None:
                super().__init__()
                self.register_buffer("packed", linear.weight.detach())
                self.register_buffer("shift", linear.bias.detach())

            def forward(self, x: Tensor) -> Tensor:
                return nn.functional.linear(x, self.packed, self.shift)

        def pack(mlp: nn.Module) -> None:
            mlp.down_proj = Packed(mlp.down_proj)

        self.left(pack, "down_proj is .*Packed, not torch.nn.Linear")

    def test_activations_and_classes_that_are_not_known_are_left_alone(self) -> None:
        model = small_model(hidden_act="mish")
        result = sluice.patch(model)
        self.assertEqual(len(result.patched), 0)
        self.assertRegex(str(result), "activation transformers.*MishActivation is not known")

        class OwnMLP(modeling_llama.LlamaMLP):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) * 2

        layer = nn.Sequential(OwnMLP(LlamaConfig(**SMALL)))
        reason = r"OwnMLP.forward: returns super\(...\).forward\(...\) \* 2"
        self.assertRegex(sluice.patch(layer).left["0"], reason)

    def test_a_class_that_disagrees_in_numbers_is_left_alone(self) -> None:
        """Its syntax is the form's; its activation is of a known class and computes something else."""
        with mock.patch.object(nn.SiLU, "forward", lambda self, x: x.tanh()):
            model = small_model()
            for mlp in mlps(model):
                mlp.act_fn = nn.SiLU()
            with mock.patch.dict(proof._results, clear=True):
                with self.assertLogs("sluice", "WARNING") as logs:
                    result = sluice.patch(model)
        self.assertEqual((len(result.patched), len(result.left), len(logs.output)), (0, 2, 1))
        self.assertIn("LlamaMLP is left alone: its result differs from Sluice's by", logs.output[0])
        self.assertEqual(len(sluice.patch(model, prove=False).patched), 2)

    def test_active_dropout_and_mixed_types_are_left_alone(self) -> None:
        config = T5GemmaModuleConfig(hidden_size=32, intermediate_size=48, dropout_rate=0.5)
        mlp, x = modeling_t5gemma.T5GemmaMLP(config).eval(), torch.randn(3, 32)
        expected = mlp(x)
        report = sluice.patch(mlp)
        self.assertEqual(list(report.patched.values()), ["T5GemmaMLP"])
        with torch.no_grad():
            torch.testing.assert_close(mlp(x), expected)
            self.assertFalse(torch.allclose(mlp.train()(x), expected))  # it drops
        report.undo()
        self.assertEqual(sluice.patch(mlp).left[""], "dropout is active")
        mlp.eval().up_proj.bfloat16()
        self.assertRegex(sluice.patch(mlp).left[""], "up_proj.weight is torch.bfloat16, gate_proj's")

    def test_patching_twice_is_told_and_undone_once(self) -> None:
        model = small_model()
        first, second = sluice.patch(model), sluice.patch(model)
        self.assertEqual(set(second.left.values()), {"patched already"})
        second.undo()
        self.assertIn("forward", mlps(model)[0].__dict__)
        first.undo()
        first.undo()
        self.assertEqual(len(sluice.patch(model).patched), 2)

    def test_undoing_leaves_what_was_put_around_it_since(self) -> None:
        model = randomise(small_model())
        mlp, x = mlps(model)[0], torch.randn(3, 32)
        own = mlp(x)
        report = sluice.patch(model)
        patched = mlp.forward
        mlp.forward = lambda x: 2 * patched(x)  # as offloading does
        report.undo()
        self.assertTrue(torch.equal(mlp(x), 2 * own))
        self.assertNotIn("forward", mlps(model)[1].__dict__)
        again = sluice.patch(model)
        self.assertEqual(list(again.left.values()), ["its forward was replaced already"])
        again.undo()
        mlp.forward = patched  # the wrapper is taken off
        self.assertEqual(len(sluice.patch(model).patched), 2)

    def test_undoing_a_module_without_a_forward_of_its_own_any_more(self) -> None:
        model = small_model()
        report = sluice.patch(model)
        del mlps(model)[0].forward
        report.undo()
        self.assertNotIn("_sluice", mlps(model)[0].__dict__)
        self.assertEqual(len(sluice.patch(model).patched), 2)

    def test_autocast_and_other_types_compute_as_before(self) -> None:
        model = randomise(small_model())
        mlp, x = mlps(model)[0], torch.randn(3, 32)
        expected = mlp(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = mlp(x)
        sluice.patch(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.assertTrue(torch.equal(mlp(x), cast))
        torch.testing.assert_close(mlp(x), expected)
        with self.assertRaises(RuntimeError):  # nn.Linear's own
            mlp(x.bfloat16())

    def test_copies_are_patched_too_and_independent(self) -> None:
        model = randomise(small_model())
        sluice.patch(model)
        twin = copy.deepcopy(model)
        self.assertIs(mlps(twin)[0].forward.__self__, mlps(twin)[0])
        with torch.no_grad():
            self.assertTrue(torch.equal(twin(TOKENS).logits, model(TOKENS).logits))
            mlps(twin)[0].down_proj.weight.zero_()
            self.assertFalse(torch.equal(twin(TOKENS).logits, model(TOKENS).logits))

    def test_a_patched_mlp_compiles_without_a_break(self) -> None:
        model = randomise(small_model())
        mlp, x = mlps(model)[0], torch.randn(3, 32)
        expected = mlp(x)
        sluice.patch(model)
        torch._dynamo.reset()
        compiled = torch.compile(mlp, fullgraph=True)
        torch.testing.assert_close(compiled(x), expected)
        own = mlp.up_proj.forward
        mlp.up_proj.forward = lambda x: 2 * own(x)
        torch.testing.assert_close(compiled(x), type(mlp).forward(mlp, x))
        self.assertFalse(torch.allclose(compiled(x), expected))

    def test_modules_carry_nothing_that_torch_compile_asks_for_at_every_call(self) -> None:
        model = randomise(small_model())
        before = [set(vars(module)) for module in (*mlps(model), model.lm_head)]
        sluice.patch(model, linears=True)
        gated = GatedMLP(8, 8, gate=sluice.Gate.clamped_swiglu())
        before.append(set(vars(nn.Module())))
        for module, names in zip((*mlps(model), model.lm_head, gated), before):
            added = {name: value for name, value in vars(module).items() if name not in names}
            self.assertTrue(added)
            for name, value in added.items():
                self.assertIsInstance(value, (str, int, float, MethodType, type(None)), name)

    def test_scripted_modules_are_passed_over(self) -> None:
        model = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 4))
        report = sluice.patch(model, linears=True)
        self.assertEqual(list(report.linears), ["1"])

    def test_what_a_module_carries_goes_to_other_processes(self) -> None:
        gated = pickle.loads(pickle.dumps(GatedMLP(8, 8, gate=sluice.Gate.clamped_swiglu())))
        with mock.patch.dict("sluice.kept._KEPT", clear=True):
            self.assertEqual(gated.gate, sluice.Gate.clamped_swiglu())
        self.assertEqual(keep(sluice.Gate("relu")), keep(sluice.Gate("relu")))
        gated.gate = sluice.Gate("relu")
        self.assertEqual(gated.gate.activation, "relu")


class Linears(unittest.TestCase):
    def setUp(self) -> None:
        operators.load()
        operators.linear_calls.update(dict.fromkeys(operators.linear_calls, 0))

    def test_logits_agree_and_undoing_restores(self) -> None:
        for tied in (False, True):
            model = randomise(small_model(tie_word_embeddings=tied))
            with self.subTest(tied=tied), torch.no_grad():
                expected, address = model(TOKENS).logits, model.lm_head.weight.data_ptr()
                report = sluice.patch(model, linears=True)
                self.assertEqual(len(report.linears), 2 * 4 + 1, report)
                self.assertEqual(report.linears["lm_head"], "64x32")
                self.assertRegex(str(report), "9 of 9 linear layers beside them patched")
                torch.testing.assert_close(model(TOKENS).logits, expected)
                self.assertEqual(operators.linear_calls["sluice"], 9)
                self.assertEqual(model.lm_head.weight.data_ptr(), address)
                same = model.lm_head.weight is model.model.embed_tokens.weight
                self.assertEqual(same, tied)
                again = sluice.patch(model, linears=True)
                self.assertEqual(set(again.linears_left.values()), {"patched already"})
                report.undo()
                self.assertTrue(torch.equal(model(TOKENS).logits, expected))
                self.assertNotIn("forward", model.lm_head.__dict__)
                operators.linear_calls["sluice"] = 0

    def test_many_tokens_gradients_and_autocast_are_torchs(self) -> None:
        layer = nn.Linear(32, 48)
        sluice.patch(layer, linears=True)
        x = torch.randn(65, 32)
        own = nn.Linear.forward(layer, x)
        layer(x[:5]).sum().backward()
        self.assertEqual(layer.bias.grad.tolist(), [5.0] * 48)
        with torch.no_grad():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                layer(x[:5])
            self.assertEqual(sum(operators.linear_calls.values()), 0)
            self.assertTrue(torch.equal(layer(x), own))
            self.assertEqual(operators.linear_calls, {"sluice": 0, "stock": 1})
            torch.testing.assert_close(layer(x[:60].view(3, 20, 32)), own[:60].view(3, 20, 48))
            torch.testing.assert_close(layer(x[0]), own[0])
            self.assertEqual(layer(x[:0]).shape, (0, 48))
            self.assertEqual(operators.linear_calls, {"sluice": 2, "stock": 2})

    def test_layers_that_are_left(self) -> None:
        class Adapter(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + 1

        hooked, replaced, wide = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8).double()
        hooked.register_forward_hook(lambda *_: None)
        replaced.forward = MethodType(lambda self, x: x, replaced)
        parametrised = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        model = nn.Sequential(Adapter(8, 8), hooked, replaced, wide, parametrised, nn.Linear(8, 8))
        report = sluice.patch(model, linears=True)
        self.assertEqual(list(report.linears), ["5"])
        for name, reason in (("0", "Adapter is not"), ("1", "has hooks"), ("2", "was replaced already"),
                             ("3", "float64"), ("4", "is not torch.nn.Linear")):  # fmt: skip
            self.assertIn(reason, report.linears_left[name])
        # And one that becomes such a layer later computes as it would have.
        x = torch.randn(3, 8)
        model[5].register_forward_hook(lambda *arguments: 2 * arguments[2])
        with torch.no_grad():
            expected = 2 * nn.Linear.forward(model[5], x)
            self.assertTrue(torch.equal(model[5](x), expected))

    def test_compiles_without_a_break(self) -> None:
        layer, x = nn.Linear(32, 48).requires_grad_(False), torch.randn(90, 32)
        sluice.patch(layer, linears=True)
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, dynamic=True)
        for m in (5, 90, 3):
            torch.testing.assert_close(compiled(x[:m]), layer(x[:m]))


if __name__ == "__main__":
    unittest.main()
