#!/usr/bin/env bash
# sanitize.sh JOBS SANITIZERS...: builds the C++ tests of core/ and of the runner once per argument into
# build/sanitize_*, runs them, and shows what a test said if it failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=$1
shift

model=$(mktemp --suffix .gguf)
said=$(mktemp)
trap 'rm -f "$model" "$said"' EXIT
python - "$model" <<'END'
import sys
from pathlib import Path

from gguf import GGMLQuantizationType

from tests.support.tiny_llama import TinyLlama, write_gguf

shape = TinyLlama(vocab_size=503)
write_gguf(Path(sys.argv[1]), shape, shape.weights(1), GGMLQuantizationType.Q8_0)
END

for sanitizers in "$@"; do
    for folder in tests/engine_ext tests/engine_ext/models; do
        build=build/sanitize_${sanitizers//,/_}_$(basename "$folder")
        cmake -S "$folder" -B "$build" -G Ninja -DION_SANITIZE="$sanitizers" >/dev/null
        cmake --build "$build" --parallel "$jobs" >"$said" 2>&1 || { cat "$said"; exit 1; }
        for test in "$build"/test_*; do
            [[ -f $test && -x $test ]] || continue
            ION_TEST_MODEL=$model "$test" >"$said" 2>&1 || { cat "$said"; echo "$test failed"; exit 1; }
            echo "$sanitizers: $(basename "$test"): $(tail -n 1 "$said")"
        done
    done
done
