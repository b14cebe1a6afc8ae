"""Ion and llama.cpp on the same CPU, model file, prompts and thread count, turn by turn.

    python tests/bench/engine_peer.py MODEL.gguf [MODEL.gguf ...] --peer PYTHON

PYTHON is an interpreter with llama-cpp-python and numpy. Every round runs ours, then theirs, each in a
process of its own; the table holds medians and ratios. Prompts are random ids, greedy, end tokens ignored,
KV in f16 on both sides; peak memory is the process's. `--make FOLDER` first writes Q4_0 and Q8_0 files
from the given one, all three from the same weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NUM_NEW = 64
CONTEXTS = (16, 512)
NUM_STREAMS = 8


def prompts_of(length: int, count: int, vocab_size: int) -> list[list[int]]:
    """Give both sides the same ids."""
    rng = random.Random(length)
    return [[rng.randrange(100, vocab_size) for _ in range(length)] for _ in range(count)]


def measure_ours(path: str, threads: int, numerics: str) -> dict[str, float]:
    """Rates in tokens per second."""
    from ionrouter.engine import _ion
    from tests.bench.engine_cpu import run

    model = _ion.Model.load_gguf(path, numerics, threads)
    vocab_size = model.config["vocab_size"]
    out: dict[str, float] = {}
    for context in CONTEXTS:
        for count in (1, NUM_STREAMS):
            blocks = count * ((context + NUM_NEW) // 16 + 2)
            options = {"num_blocks": blocks, "prefix_cache": False}
            options["max_mixed_step_ratio"] = 0.0  # as a server has it on the CPU
            engine = _ion.Engine(model, [b"x"] * vocab_size, [], options)
            prompts = prompts_of(context, count, vocab_size)
            run(engine, prompts[:1], 2)  # first touch of everything
            rates = run(engine, prompts, NUM_NEW)
            engine.close()
            out[f"decode {count} at {context}"] = rates.decode
            if count == 1:
                out[f"prefill {context}"] = rates.prefill
    return out


def measure_theirs(path: str, threads: int) -> dict[str, float]:
    """The same through llama.cpp's own batches: one `llama_decode` a step for all sequences."""
    import ctypes

    import llama_cpp as llama
    import numpy as np

    quiet = llama.llama_log_callback(lambda *_: None)  # must outlive the library's use of it
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def step(context: Any, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = llama.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wants_logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wants_logits
        if llama.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama.llama_batch_free(batch)

    def largest(context: Any, row: int) -> int:
        logits = llama.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(logits, shape=(vocab_size,)).argmax())

    def run(length: int, count: int) -> tuple[float, float]:
        params = llama.llama_context_default_params()
        params.n_ctx = count * (length + NUM_NEW + 32)
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = count
        params.n_threads = params.n_threads_batch = threads
        context = llama.llama_init_from_model(model, params)
        step(context, [(100, 0, 0, True)])  # first touch of everything
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        begin, tokens = time.perf_counter(), []
        for sequence, prompt in enumerate(prompts_of(length, count, vocab_size)):
            rows = [(token, i, sequence, i == length - 1) for i, token in enumerate(prompt)]
            step(context, rows)
            tokens.append(largest(context, length - 1))
        prefilled = time.perf_counter()
        for n in range(NUM_NEW - 1):
            step(context, [(token, length + n, sequence, True) for sequence, token in enumerate(tokens)])
            tokens = [largest(context, row) for row in range(count)]
        ended = time.perf_counter()
        llama.llama_free(context)
        return count * length / (prefilled - begin), count * (NUM_NEW - 1) / (ended - prefilled)

    out: dict[str, float] = {}
    for length in CONTEXTS:
        for count in (1, NUM_STREAMS):
            prefill, decode = run(length, count)
            out[f"decode {count} at {length}"] = decode
            if count == 1:
                out[f"prefill {length}"] = prefill
    return out


def make_files(source: str, folder: Path) -> list[str]:
    """Quantise the source's weights to Q4_0 and Q8_0; one-dimensional tensors stay float32."""
    import gguf
    import numpy as np
    from gguf import GGMLQuantizationType as Type

    folder.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    paths = []
    for kind in (Type.Q4_0, Type.Q8_0):
        path = folder / f"{Path(source).stem}-{kind.name}.gguf"
        writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name == "general.architecture":
                continue
            part = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=part)
        for tensor in reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            if values.ndim > 1:
                writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
            else:
                writer.add_tensor(tensor.name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(str(path))
    return paths


def in_process(python: str, who: str, path: str, threads: int, numerics: str) -> dict[str, float]:
    """Run one side in a fresh process."""
    command = [python, __file__, path, "--side", who, "--threads", str(threads), "--numerics", numerics]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(path: str, args: argparse.Namespace) -> None:
    """Print one model's table."""
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(in_process(sys.executable, "ours", path, args.threads, args.numerics))
        theirs.append(in_process(args.peer, "theirs", path, args.threads, args.numerics))
    print(f"\n### {Path(path).stem}, {args.threads} threads, {args.numerics}, medians of {args.rounds}\n")
    print(
        f"load average {os.getloadavg()[0]:.1f}\n\n| | Ion | llama.cpp | ratio |\n| --- | --: | --: | --: |"
    )
    for name in ours[0]:
        a, b = (statistics.median(run[name] for run in side) for side in (ours, theirs))
        print(f"| {name} | {a:.1f} | {b:.1f} | {a / b:.2f} |", flush=True)


def main() -> None:
    """Measure one side, or compare both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--numerics", default="fast")
    parser.add_argument("--make", type=Path)
    parser.add_argument("--side", choices=("ours", "theirs"))
    args = parser.parse_args()
    if args.side:
        path = args.models[0]
        ours = args.side == "ours"
        found = (
            measure_ours(path, args.threads, args.numerics) if ours else measure_theirs(path, args.threads)
        )
        found["peak memory MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return
    made = make_files(args.models[0], args.make) if args.make else []
    for path in [*args.models, *made]:
        compare(path, args)


if __name__ == "__main__":
    main()
