# SPDX-License-Identifier: Apache-2.0
"""Every gated MLP class of the installed transformers whose forward has the form, built alone with
small sizes: patched, it agrees with its own forward. And data/serving says what this
transformers holds."""

import importlib
import inspect
import json
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from torch import nn

import sluice

ROOT = Path(__file__).parents[2]
FACTS = json.loads((ROOT / "data/serving/transformers-5.17.0.json").read_text(encoding="utf-8"))
D, H = 32, 48
SIZES = ("size", "dim", "width", "d_model", "d_ff", "n_embd")
INNER = ("intermediate", "ff", "inner", "mlp")


class Tiny:
    """What the defaults of a module's configurations say, with small sizes."""

    def __init__(self, configs: list[object]) -> None:
        self.configs = configs

    def __getattr__(self, name: str) -> Any:
        values = [getattr(config, name, None) for config in self.configs]
        value = next((value for value in values if value is not None), None)
        is_size = any(part in name for part in SIZES) and not isinstance(value, bool)
        if is_size and "ratio" not in name:
            return H if any(part in name for part in INNER) else D
        return "silu" if value is None and "act" in name else value


def served() -> Iterator[tuple[str, str]]:
    """Module and name of each class."""
    for name, file, number in FACTS["classes"]:
        if FACTS["spellings"][number]["verdict"] == "served":
            yield "transformers.models." + file.removesuffix(".py").replace("/", "."), name


def built(module: Any, name: str) -> nn.Module:
    """The class alone; its arguments go by their names."""
    kind = getattr(module, name)
    configs = []
    for other in vars(module).values():
        if isinstance(other, type) and issubclass(other, transformers.PretrainedConfig):
            try:
                configs.append(other())
            except (TypeError, ValueError, ImportError):
                continue  # it has no defaults, or they need another package
    # The one that the class asks for first.
    wanted = [p.annotation for p in inspect.signature(kind.__init__).parameters.values()]
    configs.sort(key=lambda config: type(config) not in wanted)
    known = {"config": Tiny(configs), "hidden_size": D, "intermediate_size": H, "output_size": D,
             "hidden_act": "silu", "layer_idx": 0}  # fmt: skip
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    needed = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    return kind(**{name: known[name] for name in needed}).eval()


class Transformers(unittest.TestCase):
    def test_every_class_with_the_form_agrees_with_its_own_forward(self) -> None:
        patched, left = 0, {}
        for module_name, name in served():
            with self.subTest(name), torch.no_grad():
                torch.manual_seed(0)
                mlp = built(importlib.import_module(module_name), name)
                for parameter in mlp.parameters():
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
                x = torch.randn(3, next(mlp.parameters()).shape[-1])
                expected = mlp(x)
                report = sluice.patch(mlp)
                self.assertEqual(len(report.patched) + len(report.left), 1)
                torch.testing.assert_close(mlp(x), expected)
                patched += len(report.patched)
                left |= {name: reason for reason in report.left.values()}
        print(f"\n  {patched} classes patched; left: {left}", end="")
        self.assertGreater(patched, 150)
        for name, reason in left.items():
            self.assertRegex(reason, "^activation .* is not known$|, not torch.nn.Linear$", name)

    @unittest.skipUnless(transformers.__version__ == FACTS["version"], "another transformers")
    def test_the_facts_are_current(self) -> None:
        # The script puts the sources' package on the path, which processes that others spawn inherit.
        with mock.patch.object(sys, "path", [str(ROOT / "scripts"), *sys.path]):
            facts = importlib.import_module("serving_facts")
        folder = Path(transformers.__file__).parent / "models"
        self.assertEqual(facts.read(folder, "transformers", FACTS["version"]), FACTS)


if __name__ == "__main__":
    unittest.main()
