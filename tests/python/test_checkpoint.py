# SPDX-License-Identifier: Apache-2.0
"""Writing checkpoints: names, shapes, the same bytes each time, and a GGUF file made here."""

import contextlib
import importlib.util
import io
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import warnings
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
from sluice import checkpoint
from sluice.bf16 import from_bf16_bits, to_bf16_bits
from sluice.safetensors_writer import Tensor, write_tensors

_HAS_GGUF = importlib.util.find_spec("gguf") is not None
_HAS_SAFETENSORS = importlib.util.find_spec("safetensors") is not None


def read(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Header and tensors, read by the format's own rules: bf16 widened, bytes as they are."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin : 8 + size + end]
        if entry["dtype"] == "U8":
            tensors[name] = np.frombuffer(raw, dtype=np.uint8).reshape(entry["shape"])
        else:
            bits = np.frombuffer(raw, dtype="<u2")
            tensors[name] = from_bf16_bits(bits).reshape(entry["shape"])
    return header, tensors


def decode(blocks: str, rows: np.ndarray) -> np.ndarray:
    """Rows of blocks to fp32, by the formulas of include/sluice/types.hpp."""
    size = {"q8_0": 34, "q4_0": 18, "q4_1": 20}[blocks]
    data = rows.reshape(rows.shape[0], -1, size)
    scale = np.ascontiguousarray(data[..., :2]).view("<f2").astype(np.float32)
    if blocks == "q8_0":
        values = scale * data[..., 2:].view(np.int8).astype(np.float32)
    else:
        nibbles = data[..., -16:]
        q = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).astype(np.float32)
        if blocks == "q4_0":
            values = scale * (q - 8)
        else:
            least = np.ascontiguousarray(data[..., 2:4]).view("<f2").astype(np.float32)
            values = scale * q + least
    return values.reshape(rows.shape[0], -1)


def run(*arguments: str) -> tuple[int, str]:
    """Exit status and standard error of the command line."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            status = checkpoint.main(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
    return status, errors.getvalue()


class FolderTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class NamesTest(unittest.TestCase):
    def test_names(self) -> None:
        names = {
            "token_embd.weight": "model.embed_tokens.weight",
            "output_norm.weight": "model.norm.weight",
            "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
            "blk.7.ffn_up.weight": "model.layers.7.mlp.up_proj.weight",
            "blk.29.ffn_down.weight": "model.layers.29.mlp.down_proj.weight",
            "blk.10.ffn_norm.weight": "model.layers.10.post_attention_layernorm.weight",
        }
        for given, expected in names.items():
            self.assertEqual(checkpoint.hugging_face_name(given), expected)
        for other in ("blk.0.attn_q.weight", "blk.0.attn_norm.weight", "output.weight",
                      "blk.00.ffn_up.weight", "xblk.0.ffn_up.weight", "blk.0.ffn_up.weight.x",
                      "blk.0.ffn_gate_exps.weight"):  # fmt: skip
            self.assertIsNone(checkpoint.hugging_face_name(other), other)

    def test_shape_order_and_eps(self) -> None:
        self.assertEqual(checkpoint.row_major_shape(np.array([576, 1536], np.uint64)), (1536, 576))
        self.assertEqual(checkpoint.shortest_float32(9.999999747378752e-06), 1e-05)


class WriterTest(FolderTest):
    def test_header_and_bytes(self) -> None:
        values = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
        path = self.folder / "a.safetensors"
        tensors = [
            Tensor("b", (2, 3), lambda: values),
            Tensor("a", (4,), lambda: np.full(4, 0.1, np.float32)),
        ]
        write_tensors(path, tensors, {"z": "1", "a": "2"})
        header, got = read(path)
        self.assertEqual(header["__metadata__"], {"a": "2", "z": "1"})
        self.assertEqual(header["b"]["data_offsets"], [0, 12])
        np.testing.assert_array_equal(to_bf16_bits(got["b"]), to_bf16_bits(values))
        (size,) = struct.unpack("<Q", path.read_bytes()[:8])
        self.assertEqual((8 + size) % 64, 0)
        self.assertEqual(path.stat().st_size, 8 + size + 12 + 8)
        first = path.read_bytes()
        write_tensors(path, tensors, {"a": "2", "z": "1"})
        self.assertEqual(path.read_bytes(), first)

    def test_bytes_are_written_as_they_are(self) -> None:
        path = self.folder / "a.safetensors"
        values = np.arange(40, dtype=np.uint8).reshape(2, 20)
        write_tensors(path, [Tensor("w", (2, 20), lambda: values, "U8")], {})
        header, got = read(path)
        self.assertEqual(header["w"], {"dtype": "U8", "shape": [2, 20], "data_offsets": [0, 40]})
        np.testing.assert_array_equal(got["w"], values)
        with self.assertRaisesRegex(ValueError, "w: expected uint8, got float32"):
            floats = values.astype(np.float32)
            write_tensors(path, [Tensor("w", (2, 20), lambda: floats, "U8")], {})

    def test_bytes_of_either_type(self) -> None:
        path = self.folder / "a.safetensors"
        tensors = [Tensor("w", (3,), lambda: bytes(6)), Tensor("q", (3,), lambda: b"abc", "U8")]
        write_tensors(path, tensors, {})
        header, got = read(path)
        self.assertEqual(header["q"]["data_offsets"], [6, 9])
        self.assertEqual(got["q"].tobytes(), b"abc")
        with self.assertRaisesRegex(ValueError, "w: expected 6 bytes, got 5"):
            write_tensors(path, [Tensor("w", (3,), lambda: bytes(5))], {})

    def test_what_the_path_leads_to_is_replaced(self) -> None:
        tensor = Tensor("a", (2,), lambda: bytes(4))
        target, link, pipe = (self.folder / name for name in ("target", "link", "pipe"))
        target.write_bytes(b"old")
        link.symlink_to("target")
        write_tensors(link, [tensor], {})
        self.assertTrue(link.is_symlink())
        self.assertEqual(read(target)[0]["a"]["shape"], [2])
        os.mkfifo(pipe)
        for path in (pipe, self.folder):
            with self.assertRaisesRegex(ValueError, "is no regular file"):
                write_tensors(path, [tensor], {})
        self.assertTrue(pipe.is_fifo())

    def test_failures_leave_nothing(self) -> None:
        path = self.folder / "a.safetensors"
        zeros = Tensor("a", (2,), lambda: np.zeros(2, np.float32))
        with self.assertRaisesRegex(ValueError, "a: appears twice"):
            write_tensors(path, [zeros, zeros], {})
        with self.assertRaisesRegex(ValueError, "b: expected shape"):
            write_tensors(path, [zeros, Tensor("b", (3,), lambda: np.zeros(2, np.float32))], {})
        self.assertEqual(list(self.folder.iterdir()), [])

    @unittest.skipUnless(_HAS_SAFETENSORS, "needs safetensors")
    def test_the_reference_reader_agrees(self) -> None:
        import safetensors

        path = self.folder / "a.safetensors"
        values = np.linspace(-3, 3, 35, dtype=np.float32).reshape(5, 7)
        write_tensors(path, [Tensor("w", (5, 7), lambda: values)], {"format": "pt"})
        ((name, tensor),) = safetensors.deserialize(path.read_bytes())
        self.assertEqual((name, tensor["dtype"], tensor["shape"]), ("w", "BF16", [5, 7]))
        self.assertEqual(bytes(tensor["data"]), to_bf16_bits(values).tobytes())


@unittest.skipUnless(Path("/dev/full").exists(), "no full device")
class FullDeviceTest(FolderTest):
    def expect_one_line(self, *words: str) -> None:
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-B", *words], stdout=full, stderr=subprocess.PIPE, text=True
            )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"^sluice[ .]\w+: standard output: No space left.*\n\Z")

    def test_checkpoint(self) -> None:
        sizes = ("--d", "8", "--hidden", "16", "--layers", "1", "--vocabulary", "8")
        out = str(self.folder / "model.safetensors")
        self.expect_one_line("-m", "sluice.checkpoint", "--generate", *sizes, "--out", out)

    def test_doctor(self) -> None:
        self.expect_one_line("-m", "sluice", "doctor")


class GenerateTest(FolderTest):
    arguments = ("--generate", "--d", "32", "--hidden", "64", "--layers", "2", "--vocabulary", "50")

    def test_shapes_config_and_scale(self) -> None:
        out = self.folder / "new" / "model.safetensors"
        self.assertEqual(run("--out", str(out), *self.arguments), (0, ""))
        header, tensors = read(out)
        self.assertEqual(tensors["model.embed_tokens.weight"].shape, (50, 32))
        self.assertEqual(tensors["model.layers.1.mlp.gate_proj.weight"].shape, (64, 32))
        self.assertEqual(tensors["model.layers.1.mlp.down_proj.weight"].shape, (32, 64))
        self.assertEqual(len(tensors), 2 * 4 + 2)
        gate = tensors["model.layers.0.mlp.gate_proj.weight"]
        up = tensors["model.layers.0.mlp.up_proj.weight"]
        # Standard deviations differ by 9/4; each estimate has a standard error of 1/sqrt(2 n), so
        # eight of them leave room for neither a swap nor equal scales.
        ratio = gate.std() / up.std()
        self.assertLess(abs(ratio / 2.25 - 1), 8 / np.sqrt(2 * gate.size))
        config = json.loads((out.parent / "config.json").read_text())
        self.assertEqual((config["hidden_size"], config["intermediate_size"]), (32, 64))
        self.assertEqual((config["hidden_act"], config["rms_norm_eps"]), ("silu", 1e-5))
        self.assertEqual(header["__metadata__"]["name"], config["_name_or_path"])

    def test_seeds(self) -> None:
        paths = [self.folder / name for name in ("a.safetensors", "b.safetensors", "c.safetensors")]
        for path, seed in zip(paths, ("1", "1", "2"), strict=True):
            self.assertEqual(run("--out", str(path), "--seed", seed, *self.arguments)[0], 0)
        self.assertEqual(paths[0].read_bytes(), paths[1].read_bytes())
        self.assertNotEqual(paths[0].read_bytes(), paths[2].read_bytes())
        tensors = read(paths[0])[1]
        first, second = (tensors[f"model.layers.{i}.mlp.up_proj.weight"] for i in (0, 1))
        self.assertFalse(np.array_equal(first, second))

    def test_usage(self) -> None:
        out = str(self.folder / "a.safetensors")
        self.assertEqual(run()[0], 2)
        self.assertEqual(run("--out", out, "--generate", "--layers", "0")[0], 2)
        self.assertEqual(run("--out", out, "--generate", "--seed", "-1")[0], 2)
        self.assertEqual(run("--out", out, "--generate", "--wheel", "x.whl")[0], 2)
        self.assertEqual(run("--out", out, "--generate", "--weights", "blocks")[0], 2)
        self.assertEqual(run("--out", out, "--weights", "q5_k")[0], 2)

    @unittest.skipUnless(_HAS_GGUF, "needs gguf")
    def test_blocks(self) -> None:
        plain, packed = self.folder / "a.safetensors", self.folder / "b.safetensors"
        self.assertEqual(run("--out", str(plain), *self.arguments)[0], 0)
        self.assertEqual(run("--out", str(packed), "--weights", "q8_0", *self.arguments)[0], 0)
        name = "model.layers.1.mlp.down_proj.weight"
        header, tensors = read(packed)
        self.assertEqual(header["__metadata__"]["mlp_weight_blocks"], "q8_0")
        self.assertEqual(tensors[name].shape, (32, 2 * 34))
        expected = read(plain)[1][name]
        # Half a step of the largest of 32 normals over 127, and the rounding to bf16.
        self.assertLess(abs(decode("q8_0", tensors[name]) - expected).max(), 0.01 * expected.max())
        odd = ("--d", "40", *self.arguments[3:])
        status, errors = run("--out", str(packed), "--weights", "q4_0", "--generate", *odd)
        self.assertEqual(status, 1)
        self.assertIn("rows of 40 are not whole blocks of 32 for q4_0", errors)


class MissingTest(FolderTest):
    def test_package_not_installed(self) -> None:
        with self.assertRaises(checkpoint.Unavailable):
            checkpoint.find_packaged_gguf("sluice-has-no-such-package")

    def test_exit_status_3(self) -> None:
        missing = checkpoint.Unavailable("the package is not installed")
        with mock.patch.object(checkpoint, "find_packaged_gguf", side_effect=missing):
            status, errors = run("--out", str(self.folder / "a.safetensors"))
        self.assertEqual(status, 3)
        self.assertIn("is not installed", errors)

    def test_bad_wheels(self) -> None:
        wheel = self.folder / "a.whl"
        wheel.write_bytes(b"no zip")
        out = str(self.folder / "a.safetensors")
        self.assertEqual(run("--out", out, "--wheel", str(wheel))[0], 1)
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("a.txt", "text")
        status, errors = run("--out", out, "--wheel", str(wheel))
        self.assertEqual(status, 1)
        self.assertIn("holds 0 .gguf files", errors)


@unittest.skipUnless(_HAS_GGUF, "needs gguf")
class GgufTest(FolderTest):
    d, h, layers, vocabulary = 32, 64, 2, 96

    def write_gguf(self, skip: str = "", blocks: str = "", **overrides: float) -> Path:
        """A GGUF file with gate weights of Q8_0, all else fp32; some metadata as given. Where
        ``blocks`` names a type, all MLP weights are of it."""
        import gguf

        path = self.folder / "Tiny-Model.Q8_0.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(overrides.get("layers", self.layers))
        writer.add_embedding_length(overrides.get("d", self.d))
        writer.add_feed_forward_length(self.h)
        writer.add_vocab_size(self.vocabulary)
        writer.add_layer_norm_rms_eps(overrides.get("eps", 1e-5))
        self.values = {}
        self.packed = {}
        shapes = {"token_embd.weight": (self.vocabulary, self.d), "output_norm.weight": (self.d,)}
        if more := overrides.get("more"):
            shapes[more] = (self.h,)
        for i in range(self.layers):
            shapes[f"blk.{i}.ffn_gate.weight"] = (self.h, self.d)
            shapes[f"blk.{i}.ffn_up.weight"] = (self.h, self.d)
            shapes[f"blk.{i}.ffn_down.weight"] = (self.d, self.h)
            shapes[f"blk.{i}.ffn_norm.weight"] = (self.d,)
            shapes[f"blk.{i}.attn_q.weight"] = (self.d, self.d)
        generator = np.random.Generator(np.random.PCG64(3))
        for name, shape in shapes.items():
            if name == skip:
                continue
            values = generator.standard_normal(shape, dtype=np.float32)
            if "ffn_gate" in name or (blocks and "ffn_" in name and "norm" not in name):
                kind = checkpoint.quantization_type(blocks or "q8_0")
                packed = gguf.quantize(values, kind)
                values = gguf.dequantize(packed, kind)
                writer.add_tensor(name, packed, raw_dtype=kind)
                self.packed[name] = packed
            else:
                writer.add_tensor(name, values)
            self.values[name] = values
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def test_converts(self) -> None:
        gguf_file = self.write_gguf()
        out = self.folder / "model.safetensors"
        self.assertEqual(run("--out", str(out), "--gguf", str(gguf_file)), (0, ""))
        _, tensors = read(out)
        self.assertEqual(len(tensors), 2 + 4 * self.layers)
        for name, values in self.values.items():
            target = checkpoint.hugging_face_name(name)
            if target is None:
                continue
            np.testing.assert_array_equal(
                to_bf16_bits(tensors[target]), to_bf16_bits(values), err_msg=name
            )
        config = json.loads((self.folder / "config.json").read_text())
        self.assertEqual(config["_name_or_path"], "Tiny-Model")
        self.assertEqual(config["rms_norm_eps"], 1e-5)

    def test_keeps_the_files_own_blocks(self) -> None:
        for blocks in checkpoint.BLOCK_TYPES:
            gguf_file = self.write_gguf(blocks=blocks)
            out = self.folder / "model.safetensors"
            arguments = ("--out", str(out), "--gguf", str(gguf_file), "--weights", "blocks")
            self.assertEqual(run(*arguments), (0, ""))
            header, tensors = read(out)
            self.assertEqual(header["__metadata__"]["mlp_weight_blocks"], blocks)
            self.assertEqual(len(self.packed), 3 * self.layers)
            for name, packed in self.packed.items():
                got = tensors[checkpoint.hugging_face_name(name)]
                np.testing.assert_array_equal(got, packed, err_msg=name)
                # What the library computes with is what GGUF's own code makes of the bytes.
                np.testing.assert_array_equal(decode(blocks, got), self.values[name], err_msg=name)
            norm = "blk.1.ffn_norm.weight"
            np.testing.assert_array_equal(
                to_bf16_bits(tensors[checkpoint.hugging_face_name(norm)]),
                to_bf16_bits(self.values[norm]),
            )

    def test_requantises(self) -> None:
        import gguf

        gguf_file = self.write_gguf()
        out = self.folder / "model.safetensors"
        arguments = ("--out", str(out), "--gguf", str(gguf_file), "--weights", "q4_0")
        self.assertEqual(run(*arguments), (0, ""))
        _, tensors = read(out)
        for name in ("blk.0.ffn_gate.weight", "blk.1.ffn_down.weight"):
            expected = gguf.quantize(self.values[name], gguf.GGMLQuantizationType.Q4_0)
            np.testing.assert_array_equal(tensors[checkpoint.hugging_face_name(name)], expected)

    def test_keeps_no_mixture(self) -> None:
        out = str(self.folder / "model.safetensors")
        status, errors = run("--out", out, "--gguf", str(self.write_gguf()), "--weights", "blocks")
        self.assertEqual(status, 1)
        self.assertIn("MLP weights are f32, q8_0; --weights blocks keeps one of", errors)

    def test_takes_it_out_of_a_wheel(self) -> None:
        gguf_file = self.write_gguf()
        wheel = self.folder / "a.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(gguf_file, "package/Tiny-Model.Q8_0.gguf")
        one, two = self.folder / "1.safetensors", self.folder / "2.safetensors"
        self.assertEqual(run("--out", str(one), "--gguf", str(gguf_file))[0], 0)
        self.assertEqual(run("--out", str(two), "--wheel", str(wheel))[0], 0)
        self.assertEqual(one.read_bytes(), two.read_bytes())

    def test_says_what_is_wrong(self) -> None:
        out = str(self.folder / "model.safetensors")
        cases = [
            (self.write_gguf, {"skip": "blk.1.ffn_up.weight"}, "no tensor for model.layers.1"),
            (self.write_gguf, {"layers": 3}, "no tensor for model.layers.2"),
            (self.write_gguf, {"layers": 1}, "beyond the 1 layers"),
            (self.write_gguf, {"d": 16}, "expected shape"),
            (self.write_gguf, {"more": "blk.0.ffn_gate.bias"}, "blk.0.ffn_gate.bias: of an MLP only"),
        ]
        for write, options, message in cases:
            with self.subTest(message):
                status, errors = run("--out", out, "--gguf", str(write(**options)))
                self.assertEqual(status, 1)
                self.assertIn(message, errors)
        damaged = (2**32 - 1, float("nan"), float("inf"), -1.0, 0.0)
        for value in damaged:
            with self.subTest(value):
                key = "layers" if isinstance(value, int) else "eps"
                status, errors = run("--out", out, "--gguf", str(self.write_gguf(**{key: value})))
                self.assertEqual(status, 1)
                self.assertRegex(errors, "no tensor for|expected a positive number")
        self.assertFalse((self.folder / "config.json").exists())
        status, errors = run("--generate", "--out", str(self.folder / "config.json"))
        self.assertEqual(status, 2)
        self.assertIn("config.json is written beside it", errors)
        (self.folder / "bad.gguf").write_bytes(b"GGUX" + bytes(60))
        self.assertEqual(run("--out", out, "--gguf", str(self.folder / "bad.gguf"))[0], 1)
        self.assertEqual(run("--out", out, "--gguf", str(self.folder / "absent.gguf"))[0], 1)

    def test_values_that_are_no_numbers_are_refused(self) -> None:
        out = str(self.folder / "model.safetensors")
        damages = {"inf": b"\x00\x7c", "nan": b"\x00\x7e"}
        for weights in ("bf16", "blocks", "q4_0", "q8_0"):
            for damage, scale in damages.items():
                with self.subTest(weights=weights, damage=damage):
                    path = self.write_gguf(blocks="q8_0")
                    content = path.read_bytes()
                    packed = self.packed["blk.1.ffn_up.weight"].tobytes()
                    self.assertEqual(content.count(packed), 1)
                    path.write_bytes(content.replace(packed, scale + packed[2:]))
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        status, errors = run("--out", out, "--gguf", str(path), "--weights", weights)
                    self.assertEqual(status, 1)
                    self.assertEqual(errors.count("\n"), 1, errors)
                    self.assertIn("model.layers.1.mlp.up_proj.weight: holds values", errors)
                    self.assertFalse(Path(out).exists())

    def test_values_beyond_a_type_are_refused(self) -> None:
        path = self.write_gguf()
        row = self.values["blk.1.ffn_up.weight"].tobytes()
        content = path.read_bytes()
        self.assertEqual(content.count(row), 1)
        for value, weights in ((3.4e38, "bf16"), (1e10, "q8_0"), (1e10, "q4_0")):
            with self.subTest(weights), warnings.catch_warnings():
                warnings.simplefilter("error")
                path.write_bytes(content.replace(row, struct.pack("<f", value) + row[4:]))
                out = str(self.folder / "model.safetensors")
                status, errors = run("--out", out, "--gguf", str(path), "--weights", weights)
                self.assertEqual(status, 1)
                self.assertIn("model.layers.1.mlp.up_proj.weight", errors)
                self.assertIn("beyond", errors)

    def test_damaged_files_are_told(self) -> None:
        whole = self.write_gguf().read_bytes()
        header_bytes = whole.index(b"blk.1.attn_q") + 80
        gguf_file = self.folder / "damaged.gguf"
        arguments = ("--out", str(self.folder / "model.safetensors"), "--gguf", str(gguf_file))
        generator = random.Random(5)
        statuses = set()
        for i in range(80):
            content = bytearray(whole)
            at = generator.randrange(header_bytes)
            if i % 4 == 0:
                del content[at:]
            elif i % 4 == 1:
                content[at : at + 4] = b"\xff" * 4
            else:
                content[at] = generator.randrange(256)
            gguf_file.write_bytes(content)
            with self.subTest(i):
                status, errors = run(*arguments)
                statuses.add(status)
                self.assertIn(status, (0, 1))
                self.assertEqual(errors.count("\n"), status, errors)
        self.assertEqual(statuses, {0, 1})


if __name__ == "__main__":
    unittest.main()
