"""A short run over all kernels, for compute-sanitizer: a few steps of two small shapes, from graphs and not.

compute-sanitizer --tool memcheck python tests/device/check_sanitized.py LIBRARY [portable] [PRECISION ...]

portable: only the kernels for all cards, which racecheck understands.
"""

from __future__ import annotations

import itertools
import random
import sys

import reference
from drive import generate, runner_for
from ion_cuda import Library, Model, Sampling, Shape
from precisions import CHECKED, PRECISIONS

SHAPES = (
    Shape(1, 512, 8, 2, 64, 1024, 1024, has_qkv_bias=True, windows=(40,)),
    Shape(1, 512, 8, 4, 128, 1024, 1536, has_qk_norm=True, is_head_tied=True),
)


def main() -> None:
    rng = random.Random(1)
    asked = [
        Sampling(),
        Sampling(temperature=1.0, seed=3),
        Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.1, num_logprobs=3),
        Sampling(temperature=1.0, min_p=0.1, presence_penalty=0.5, bias={5: 2.0}, stop_ids=[7], min_tokens=3),
    ]
    is_portable = "portable" in sys.argv[2:]
    precisions = [name for name in PRECISIONS if name in sys.argv[2:]] or CHECKED
    for shape, precision in itertools.product(SHAPES, precisions):
        model = Model(Library(sys.argv[1]), shape, None, precision)
        reference.fill(model, seed=1)
        if not is_portable:
            model.tile()
        for graphs, decode_warps in ((False, 0), (True, 0), (False, 1), (False, 2), (False, -1)):
            # On Hopper prompts are cut from 512 tokens on, and from 1,280 rows on rotation is a part of a
            # product.
            is_long = not (is_portable or graphs or decode_warps > 0)
            longest = 1400 if is_long else 500
            budget = 1800 if is_long and decode_warps < 0 else 300
            runner = runner_for(
                model,
                slots=4,
                budget=budget,
                context=1600,
                blocks=180,
                graphs=graphs,
                streams=not is_portable,
                decode_warps=decode_warps,
            )
            prompts = [[rng.randrange(shape.vocab_size) for _ in range(n)] for n in (1, 40, 300, longest)]
            outputs, _ = generate(runner, prompts, [4] * 4, budget=budget, max_running=4, sampling=asked)
            assert all(len(output) == 4 for output in outputs)
            runner.close()
        model.close()
    print("ran")


if __name__ == "__main__":
    main()
