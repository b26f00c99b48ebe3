# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of engines: what they ask an engine for, what they write of made-up times, and transformers'
own ``generate`` on a small model."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from sluice import results

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import engine_turns  # noqa: E402
import hf_generate  # noqa: E402
from engine_turns import Host, Setup  # noqa: E402

# An engine of made-up times: a first token takes 1 s; a step 2 ms in stock, 1 ms else, and 1 ms a request.
STUB = """
import os, sys
sys.path.insert(0, {bench!r})
import engine_turns

class Engine:
    def __init__(self, setup):
        assert setup.context >= 1 + 16 and setup.dtype == "fp16" and setup.prefix_cache, setup
        self.step = 2e-3 if os.environ["SLUICE_STUB"] == "off" else 1e-3
    def seconds(self, batch, tokens, prompt):
        return 1 + (tokens - 1) * (self.step + 1e-3 * batch)
    def check(self, batch):
        return [[(token, {{"5": -0.1, "6": -2.5}}) for token in (5, 5, 6)]] * batch
    def facts(self):
        return {{"peak_bytes": 1 << 30}}

engine_turns.serve(Engine)
"""


def run(host: Host, *words: str) -> str:
    """What a program prints."""
    said = io.StringIO()
    with mock.patch.object(sys, "argv", ["bench", *words]), contextlib.redirect_stdout(said):
        engine_turns.main(host, "A stub.")
    return said.getvalue()


class Turns(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        program = self.folder / "stub_decode.py"
        program.write_text(STUB.format(bench=str(BENCH)), encoding="utf-8")
        self.host = Host("Stub", "stub", str(program))

    def measure(self, *words: str) -> results.ResultFile:
        path = self.folder / "rows.json"
        with mock.patch.object(engine_turns, "FIRSTS", 1), mock.patch.object(engine_turns, "STEP_S", 0):
            run(self.host, str(path), "--dtype", "fp16", "--prefix-cache", "--runs", "2", *words)
        return results.load(path)

    def test_each_output_and_number_of_requests_has_a_row(self) -> None:
        file = self.measure("--output", "8", "16", "--batches", "1", "4", "--prompt", "1")
        self.assertEqual(
            [(r["output"], r["batch"]) for r in file.rows],
            [("8", 1), ("8", 4), ("16", 1), ("16", 4)],
        )
        for row in file.rows:
            self.assertAlmostEqual(row["us"], 1e3 + 1e3 * row["batch"], places=3)
            self.assertAlmostEqual(row["baseline_us"], 2e3 + 1e3 * row["batch"], places=3)
            self.assertEqual((row["dtype"], row["baseline"], row["runs"]), ("fp16", "stub", 2))
        self.assertEqual(
            file.meta["command"],
            "python bench/stub_decode.py --model llama-3.1-8b --dtype fp16 --output 8 16 --prompt 1 --runs 2"
            " --prefix-cache",
        )

    def test_first_tokens_have_rows_of_their_own(self) -> None:
        file = self.measure("--output", "8", "--batches", "1", "--prompts", "64")
        (row,) = [r for r in file.rows if r["pass"] == "prefill"]
        self.assertEqual((row["m"], row["us"]), (64, 1e6))

    def test_files_of_one_card_are_joined(self) -> None:
        self.measure("--output", "8", "--batches", "1", "--prompts")
        one = self.folder / "rows.json"
        other, whole = self.folder / "other.json", self.folder / "whole.json"
        file = results.load(one)
        meta = {**file.meta, "commit": "1" * 40, "date": "2099-01-01T00:00:00Z", "command": "later"}
        engine_turns.save(other, meta, [{**row, "baseline": "vllm"} for row in file.rows])
        run(self.host, str(whole), "--join", str(other), str(one))
        joined = results.load(whole)
        self.assertEqual([r["baseline"] for r in joined.rows], ["stub", "vllm"])
        self.assertEqual(joined.meta["commit"], file.meta["commit"])  # the oldest
        self.assertEqual(joined.meta["command"], f"later; {file.meta['command']}")
        device = file.meta["device"]
        other.write_text(one.read_text("utf-8").replace(f'"{device}"', '"another card"'), "utf-8")
        with self.assertRaisesRegex(SystemExit, "several devices.*another card"):
            run(self.host, str(whole), "--join", str(other), str(one))

    def test_the_engine_holds_all_that_is_asked_for(self) -> None:
        def of(*words: str) -> Setup:
            with mock.patch.object(sys, "argv", ["bench", "rows.json", *words]):
                return Setup.of(engine_turns.parse(self.host, "A stub."))

        usual = of()
        self.assertEqual((usual.context, usual.kv_bytes()), (8192 + 16, 12 << 30))
        long = of("--prompt", "1", "--output", "1024", "16384", "--batches", "1", "16")
        self.assertGreaterEqual(long.context, 16384 + 32)
        self.assertGreaterEqual(long.kv_tokens, 16 * (16384 + 32))
        self.assertGreaterEqual(long.config()["max_position_embeddings"], long.context)
        self.assertEqual(of("--dtype", "fp16").config()["torch_dtype"], "float16")


class Generate(unittest.TestCase):
    TINY: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "vocab_size": 32064,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip

    def engine(self, mode: str) -> hf_generate.Engine:
        with (
            mock.patch.dict(engine_turns.CONFIGS, {"tiny": self.TINY}),
            mock.patch.dict("os.environ", SLUICE_HF_COMPILED=mode),
        ):
            return hf_generate.Engine(Setup("tiny", "bf16", 2048, 32, 4096))

    def test_both_generate_the_same_tokens(self) -> None:
        stock, ours = (self.engine(mode) for mode in ("off", "auto"))
        self.assertEqual(stock.facts()["calls"], "stock")
        self.assertIn("2 of 2", ours.facts()["calls"])
        (a, b), (c, d) = (engine.check(2) for engine in (stock, ours))
        self.assertEqual((len(a), len(a[0][1])), (engine_turns.CHECKED, engine_turns.CANDIDATES))
        for theirs, mine in ((a, c), (b, d)):
            for (token, best), (ours_token, ours_best) in zip(theirs, mine):
                self.assertEqual(best[str(token)], max(best.values()))  # of equals any
                if token != ours_token:
                    break  # a tie of bf16 logits: other inputs from here on
                self.assertAlmostEqual(best[str(token)], ours_best[str(token)], delta=0.05)
        self.assertGreater(ours.seconds(1, 4, 8), 0)
        # A run again finds its cache, and starts from an empty one.
        self.assertEqual(ours.check(2), [c, d])
        self.assertEqual(set(ours.caches), {(2, 512), (1, 512)})


if __name__ == "__main__":
    unittest.main()
