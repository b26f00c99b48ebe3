# SPDX-License-Identifier: Apache-2.0
"""Every committed results file has the fields, words and units of docs/benchmarking.md.

``results.py FOLDER``: exit status 1 and a line per finding; also where there is no file."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

TEXT, NUMBER, COUNT, FLAG = "text", "number", "count", "flag"

META: dict[str, tuple[str, bool]] = {  # name: (kind, may be null)
    "device": (TEXT, False),
    "driver": (TEXT, True),
    "cuda": (TEXT, True),
    "compiler": (TEXT, False),
    "commit": (TEXT, False),
    "dirty": (FLAG, False),
    "date": (TEXT, False),
    "command": (TEXT, False),
    "read_tbps": (NUMBER, True),
    "copy_tbps": (NUMBER, True),
    "gemm_tflops": (NUMBER, True),
    "fma_gflops": (NUMBER, True),
    "clocks": (TEXT, False),
}
OPTIONAL_META: dict[str, tuple[str, bool]] = {  # files of before it was measured lack it
    "bf16_gflops": (NUMBER, True),
    "max_simd": (TEXT, True),
    "mma_sync_tflops": (NUMBER, True),
}
ROW: dict[str, tuple[str, bool]] = {
    "op": (TEXT, False),
    "pass": (TEXT, False),
    "model": (TEXT, True),
    "m": (COUNT, False),
    "d": (COUNT, False),
    "h": (COUNT, False),
    "dtype": (TEXT, False),
    "gate": (TEXT, False),
    "layout": (TEXT, False),
    "variant": (TEXT, False),
    "us": (NUMBER, False),
    "us_p10": (NUMBER, False),
    "us_p90": (NUMBER, False),
    "tflops": (NUMBER, False),
    "gbps": (NUMBER, False),
    "roof_fraction": (NUMBER, True),
    "baseline": (TEXT, True),
    "baseline_us": (NUMBER, True),
    "ratio": (NUMBER, True),
    "extra_bytes": (COUNT, True),
    "peak_bytes": (COUNT, True),
    "rel_err": (NUMBER, True),
    "config": (TEXT, False),
    "threads": (COUNT, False),
    "tp": (COUNT, False),
}
OPTIONAL_ROW: dict[str, tuple[str, bool]] = {
    "read_share": (NUMBER, True),
    "fma_share": (NUMBER, True),
    "baseline_extra_bytes": (COUNT, True),
    "baseline_config": (TEXT, True),
    "baseline_rel_err": (NUMBER, True),
    "draws": (COUNT, False),
    "max_diff": (NUMBER, False),
    "mean_diff": (NUMBER, False),
    "rel_diff": (NUMBER, False),
    "rel_diff_sd": (NUMBER, False),
    "study_rel_diff": (NUMBER, True),
    "policy": (TEXT, False),
    "output": (TEXT, False),
    "batch": (COUNT, True),
    "tokens_per_s": (NUMBER, True),
    "baseline_tokens_per_s": (NUMBER, True),
    "ttft_ms": (NUMBER, True),
    "runs": (COUNT, False),
    "sd": (NUMBER, True),
    "baseline_sd": (NUMBER, True),
    "baseline_peak_bytes": (COUNT, False),
    "clocks": (TEXT, False),
    "baseline_clocks": (TEXT, False),
}
WORDS = {
    "op": set(
        "gate_up down mlp gate_mul gate_mul_grad gate_up_grad mlp_grad mlp_train e2e".split()
    ),
    "pass": set("fwd bwd full decode prefill".split()),
    "baseline": set(
        "cublaslt+act cublaslt_gemm cublaslt_chain own_unfused quack liger liger_tiled triton "
        "torch_eager torch_compile onednn openblas ggml hf_eager vllm sglang".split()
    ),
}

EXAMPLE: dict[str, Any] = {
    "meta": {
        "device": "a CPU", "driver": None, "cuda": None, "compiler": "GNU 12.2.0", "commit": "0" * 40,
        "dirty": False, "date": "2026-01-02T03:04:05Z", "command": "sluice bench", "clocks": "2 GHz",
        "read_tbps": 0.02, "copy_tbps": None, "gemm_tflops": None, "fma_gflops": 180.0,
    },
    "rows": [{
        "op": "mlp", "pass": "fwd", "model": None, "m": 1, "d": 8, "h": 16, "dtype": "bf16",
        "gate": "silu", "layout": "separate", "variant": "cpu.simd", "us": 2.0, "us_p10": 1.5,
        "us_p90": 3.0, "tflops": 0.1, "gbps": 1.0, "roof_fraction": None,
        "baseline": "own_unfused", "baseline_us": 3.0, "ratio": 1.5, "extra_bytes": 0,
        "peak_bytes": 100, "rel_err": 1e-3, "config": "c", "threads": 2, "tp": 1,
    }],
}  # fmt: skip


def is_kind(value: Any, kind: str) -> bool:
    if kind == TEXT:
        return isinstance(value, str) and value != ""
    if kind == FLAG:
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int if kind == COUNT else (int, float)):
        return False
    return math.isfinite(value) and value >= 0


def object_findings(
    where: str, data: Any, needed: dict[str, tuple[str, bool]], optional: dict[str, tuple[str, bool]]
) -> list[str]:
    if not isinstance(data, dict):
        return [f"{where}: not an object"]
    out = [f"{where}: no {name}" for name in needed if name not in data]
    for name, value in data.items():
        kind, nullable = needed.get(name) or optional.get(name) or ("", False)
        if not kind:
            out.append(f"{where}: unknown field {name}")
        elif not (value is None and nullable) and not is_kind(value, kind):
            out.append(f"{where}: {name} is {value!r}, wanted a {kind}")
        elif name in WORDS and value is not None and value not in WORDS[name]:
            out.append(f"{where}: {name} is {value!r}, wanted one of {sorted(WORDS[name])}")
    return out


def row_findings(where: str, row: Any) -> list[str]:
    out = object_findings(where, row, ROW, OPTIONAL_ROW)
    if out:
        return out
    if not row["us_p10"] <= row["us"] <= row["us_p90"]:
        out.append(f"{where}: us is not between its p10 and p90")
    given = [row[name] is not None for name in ("baseline", "baseline_us", "ratio")]
    if any(given) != all(given):
        out.append(f"{where}: baseline, baseline_us and ratio must be given together")
    elif all(given):
        # Written with four decimals.
        if abs(row["ratio"] - row["baseline_us"] / row["us"]) > 1e-3 * max(1.0, row["ratio"]):
            out.append(f"{where}: ratio is not baseline_us / us")
    return out


def findings(data: Any) -> list[str]:
    if not isinstance(data, dict) or not {"meta", "rows"} <= data.keys():
        return ["no meta and rows"]
    out = object_findings("meta", data["meta"], META, OPTIONAL_META)
    if not isinstance(data["rows"], list) or not data["rows"]:
        return out + ["no rows"]
    for i, row in enumerate(data["rows"]):
        out += row_findings(f"rows[{i}]", row)
    return out


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    paths = sorted(Path(arguments[0]).rglob("*.json"))
    bad = 0
    for path in paths:
        try:
            problems = findings(json.loads(path.read_text(encoding="utf-8")))
        except json.JSONDecodeError as error:
            problems = [str(error)]
        bad += len(problems)
        for problem in problems:
            print(f"{path}: {problem}")
    print(f"results: {len(paths)} files, {bad} findings")
    return 1 if bad or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
