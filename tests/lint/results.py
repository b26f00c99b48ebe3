# SPDX-License-Identifier: Apache-2.0
"""Every committed results file has the form, fields, words and units of docs/benchmarking.md, and all
of them together are small.

``results.py FOLDER``: exit status 1 and a line per finding; also where there is no file."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path
from typing import Any

from sluice import results

MOST_BYTES = 1_000_000  # of all files

TEXT, NUMBER, COUNT, FLAG = "text", "number of at most four digits", "count", "flag"

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
OPTIONAL_META: dict[str, str] = {  # files of before it was measured lack it
    "bf16_gflops": NUMBER,
    "max_simd": TEXT,
    "fingerprints": TEXT,
    "mma_sync_tflops": NUMBER,
    "ratio_shapes": COUNT,
    "ratio_mean": NUMBER,
    "ratio_p5": NUMBER,
    "ratio_lowest": NUMBER,
    "ratio_lowest_case": TEXT,
    "skipped": TEXT,
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
OPTIONAL_ROW: dict[str, str] = {  # null where a row has none
    "read_share": NUMBER,
    "fma_share": NUMBER,
    "baseline_extra_bytes": COUNT,
    "baseline_config": TEXT,
    "baseline_rel_err": NUMBER,
    "draws": COUNT,
    "max_diff": NUMBER,
    "mean_diff": NUMBER,
    "rel_diff": NUMBER,
    "rel_diff_sd": NUMBER,
    "norm_diff": NUMBER,
    "norm_diff_sd": NUMBER,
    "study_rel_diff": NUMBER,
    "perplexity": NUMBER,
    "baseline_perplexity": NUMBER,
    "step": COUNT,
    "loss": NUMBER,
    "baseline_loss": NUMBER,
    "case": TEXT,
    "kernels": TEXT,
    "policy": TEXT,
    "regret": NUMBER,
    "samples": TEXT,
    "output": TEXT,
    "batch": COUNT,
    "tokens_per_s": NUMBER,
    "baseline_tokens_per_s": NUMBER,
    "ttft_ms": NUMBER,
    "runs": COUNT,
    "sd": NUMBER,
    "baseline_sd": NUMBER,
    "baseline_peak_bytes": COUNT,
    "clocks": TEXT,
    "baseline_clocks": TEXT,
    "reduce": TEXT,
    "layer_ratio": NUMBER,
    "max_diff_sd": NUMBER,
    "mean_diff_sd": NUMBER,
    "mlp_alone_us": NUMBER,
    "dram_read_bytes": COUNT,
    "dram_written_bytes": COUNT,
    "l2_bytes": COUNT,
    "baseline_dram_read_bytes": COUNT,
    "baseline_dram_written_bytes": COUNT,
    "baseline_l2_bytes": COUNT,
    "dram_share": NUMBER,
    "registers": COUNT,
    "occupancy": NUMBER,
    "issued": NUMBER,
}
CHECK: dict[str, tuple[str, bool]] = {
    "model": (TEXT, False),
    "m": (COUNT, False),
    "layer": (COUNT, False),
    "rel_err": (NUMBER, False),
    "unfused_rel_err": (NUMBER, True),
    "worst_bound_share": (NUMBER, False),
    "compared": (COUNT, False),
    "passed": (FLAG, False),
}
WORDS = {
    "op": set(
        "gate_up down mlp gate_mul gate_mul_grad gate_up_grad mlp_grad norm input_grad weight_grad "
        "column_sum mlp_train e2e".split()
    ),
    "pass": set("fwd bwd full decode prefill".split()),
    "baseline": set(
        "cublaslt+act cublaslt_gemm cublaslt_chain own_unfused quack liger liger_mlp liger_tiled triton "
        "torch_eager torch_compile onednn openblas ggml hf_eager hf_compiled vllm sglang "
        "sluice_before cutlass_act cutlass_act_quantise cutlass_identity nccl symm_mem "
        "torch_mm+unsloth torch_mm+unsloth_in_place torch_mm+liger unsloth sluice_row".split()
    ),
}

EXAMPLE_META: dict[str, Any] = {
    "device": "a CPU", "driver": None, "cuda": None, "compiler": "GNU 12.2.0", "commit": "0" * 40,
    "dirty": False, "date": "2026-01-02T03:04:05Z", "command": "sluice bench", "clocks": "2 GHz",
    "read_tbps": 0.02, "copy_tbps": None, "gemm_tflops": None, "fma_gflops": 180.0,
}  # fmt: skip
EXAMPLE_ROW: dict[str, Any] = {
    "op": "mlp", "pass": "fwd", "model": None, "m": 1, "d": 8, "h": 16, "dtype": "bf16",
    "gate": "silu", "layout": "separate", "variant": "cpu.simd", "us": 2.0, "us_p10": 1.5,
    "us_p90": 3.0, "tflops": 0.1, "gbps": 1.0, "roof_fraction": None,
    "baseline": "own_unfused", "baseline_us": 3.0, "ratio": 1.5, "extra_bytes": 0,
    "peak_bytes": 100, "rel_err": 1e-3, "config": "c", "threads": 2, "tp": 1,
}  # fmt: skip


def is_kind(value: Any, kind: str) -> bool:
    if kind == TEXT:
        return isinstance(value, str) and value != ""
    if kind == FLAG:
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int if kind == COUNT else (int, float)):
        return False
    return math.isfinite(value) and value >= 0 and (kind == COUNT or results.rounded(float(value)) == value)


def object_findings(
    where: str, data: results.Record, needed: dict[str, tuple[str, bool]], optional: dict[str, str]
) -> list[str]:
    out = [f"{where}: no {name}" for name in needed if name not in data]
    for name, value in data.items():
        kind, nullable = needed.get(name) or (optional.get(name, ""), True)
        if not kind:
            out.append(f"{where}: unknown field {name}")
        elif not (value is None and nullable) and not is_kind(value, kind):
            out.append(f"{where}: {name} is {value!r}, wanted a {kind}")
        elif name in WORDS and value is not None and value not in WORDS[name]:
            out.append(f"{where}: {name} is {value!r}, wanted one of {sorted(WORDS[name])}")
    return out


def row_findings(where: str, row: results.Record) -> list[str]:
    out = object_findings(where, row, ROW, OPTIONAL_ROW)
    if out:
        return out
    if not row["us_p10"] <= row["us"] <= row["us_p90"]:
        out.append(f"{where}: us is not between its p10 and p90")
    given = [row[name] is not None for name in ("baseline", "baseline_us", "ratio")]
    if any(given) != all(given):
        out.append(f"{where}: baseline, baseline_us and ratio must be given together")
    elif all(given):
        # Three numbers, each rounded by at most half of the last digit of 1.000; products of such
        # errors are below a fourth.
        most = 4 * 0.5 * 10 ** (1 - results.SIGNIFICANT_DIGITS)
        if abs(row["ratio"] - row["baseline_us"] / row["us"]) > most * row["ratio"]:
            out.append(f"{where}: ratio is not baseline_us / us")
    return out


def form_findings(text: str, file: results.ResultsFile) -> list[str]:
    """Where the text is not what ``sluice.results`` writes: constants in meta, a row a line, digits."""
    found = {"rows": file.rows, "memory": file.memory, "checks": file.checks}
    lists = {key: rows for key, rows in found.items() if rows}
    wanted = results.render(file.meta, **lists)
    pairs = itertools.zip_longest(text.split("\n"), wanted.split("\n"), fillvalue="")
    for number, (got, want) in enumerate(pairs, 1):
        if got != want:
            return [f"line {number}: not as sluice.results writes it: {got[:60]!r}, wanted {want[:60]!r}"]
    return []


def findings(text: str) -> list[str]:
    try:
        file = results.parse(text, "file")
    except results.ResultsError as error:
        return [str(error)]
    if not file.rows and not file.memory:
        return ["no rows"]
    # Of `sluice memory`, which runs nothing.
    timeless = {} if file.rows else {"clocks": "none"}
    out = object_findings("meta", {**file.meta, **timeless}, META, OPTIONAL_META)
    for i, row in enumerate(file.rows):
        out += row_findings(f"rows[{i}]", row)
    for i, check in enumerate(file.checks):
        out += object_findings(f"checks[{i}]", check, CHECK, {})
    return out or form_findings(text, file)


def folder_findings(folder: Path, most_bytes: int = MOST_BYTES) -> list[str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    out = [] if paths else [f"{folder}: no files"]
    for path in paths:
        out += [f"{path}: {problem}" for problem in findings(path.read_text(encoding="utf-8"))]
    size = sum(path.stat().st_size for path in paths)
    if size > most_bytes:
        out.append(f"{folder}: {size} bytes, wanted at most {most_bytes}")
    return out


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    found = folder_findings(Path(arguments[0]))
    for problem in found:
        print(problem)
    print(f"results: {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
