"""The C++ engine as Python sees it. Built from engine_ext/bindings; no logic there.

Threads: `Engine` runs its loop in a thread of its own and never takes the GIL. `submit`, `abort` and
`drain` are cheap and thread-safe. `event_fd` becomes readable when `drain` has something.
"""

from collections.abc import Mapping, Sequence
from typing import Any

def cpu_features() -> list[str]:
    """Instruction sets found at run time: ["avx2", "fma", "f16c", ...]."""

def control_group_limits(root: str = "") -> dict[str, int | None]:
    """What the process's control groups leave: "bytes" of memory, "cpus" of time; None: no limit."""

def usable_cpus() -> int:
    """CPUs that the calling thread may use: of its affinity mask, within the quota of its control groups."""

def available_memory() -> int:
    """Bytes that may still be taken: free on the machine or in its control group, less what is promised."""

def promised_memory() -> int:
    """Bytes of weights, KV and activations of all models of this process, touched or not."""

def gguf_metadata(path: str) -> dict[str, Any]:
    """Key/value metadata of a GGUF file; strings as str (UTF-8, surrogateescape), arrays as lists.

    Raises ValueError naming the fault for a truncated, corrupt or foreign file.
    """

class MemoryShort(ValueError):
    """What was asked for does not fit now; the message has the bytes needed and available."""

class Model:
    """Weights in the form the runner reads. Loading raises ValueError naming the tensor and the fault.

    `numerics`: "fast", "deterministic", which is the same here, or "exact".
    """

    @staticmethod
    def load_gguf(path: str, numerics: str = "fast", threads: int = 0) -> Model: ...
    @staticmethod
    def load_safetensors(
        paths: Sequence[str], config_json: str, numerics: str = "fast", threads: int = 0
    ) -> Model: ...
    @staticmethod
    def random(config_json: str, seed: int, numerics: str = "fast", threads: int = 0) -> Model:
        """Make a model of a config.json's sizes whose weights follow from a seed; for benchmarks."""
    @property
    def streamed_bytes(self) -> int:
        """Bytes of the weights that every step reads: all but an embedding that is not the head."""
    @property
    def config(self) -> dict[str, Any]:
        """num_layers, hidden_size, num_heads, num_kv_heads, head_dim, vocab_size, context_length, ..."""
    @property
    def weight_bytes(self) -> int: ...
    def logits(self, tokens: Sequence[int], chunk: int = 0) -> memoryview:
        """Teacher-forced logits, float32 [len(tokens), vocab_size], `chunk` tokens at a time. For tests."""

def write_random_model(path: str, config_json: str, seed: int, threads: int = 0) -> None:
    """Write the weights of `Model.random` as a safetensors file. Raises ValueError naming the path."""

def read_bandwidth(threads: int = 0) -> float:
    """Measure a plain read of this machine's memory, in bytes a second."""

def cuda_read_bandwidth() -> float:
    """The same of the GPU's memory, of which it takes 2 GiB meanwhile. Raises RuntimeError."""

def cuda_device() -> dict[str, Any]:
    """Describe the GPU: name, compute (major, minor), num_sms, driver_version, runtime_version, total_bytes,
    free_bytes, is_coherent, and the library's path.

    Raises RuntimeError saying what is missing: libion_cuda.so (beside this module, or where
    IONROUTER_CUDA_LIBRARY says), its right version, a driver, a GPU.
    """

class CudaModel:
    """Weights on the GPU, from the same files and with the same ValueErrors as `Model`.

    `precision` of the layers' matrices: "bf16", "fp8" (codes of e4m3, a scale for each row), or "auto": fp8
    where the files hold them so. `head_precision` of the head: "bf16", or "fp8" (as the matrices; where the
    files tie it, codes of its own beside the embedding). `kv_precision` of the KV cache: "bf16", or "fp8"
    (codes of e4m3, a scale for each token and head of K and of V). `threads` convert (0: one per CPU).
    `blaslt` is the path of libcublasLt.so; empty: the library searches.
    Raises RuntimeError where there is no GPU or it fails, MemoryShort where it has too little memory.
    """

    @staticmethod
    def load_gguf(
        path: str,
        threads: int = 0,
        blaslt: str = "",
        precision: str = "auto",
        head_precision: str = "bf16",
        kv_precision: str = "bf16",
    ) -> CudaModel: ...
    @staticmethod
    def load_safetensors(
        paths: Sequence[str],
        config_json: str,
        threads: int = 0,
        blaslt: str = "",
        precision: str = "auto",
        head_precision: str = "bf16",
        kv_precision: str = "bf16",
    ) -> CudaModel: ...
    @staticmethod
    def random(
        config_json: str,
        seed: int,
        threads: int = 0,
        blaslt: str = "",
        precision: str = "auto",
        head_precision: str = "bf16",
        kv_precision: str = "bf16",
    ) -> CudaModel:
        """As `Model.random`, the same weights; made on the GPU where nothing is quantised."""
    @property
    def streamed_bytes(self) -> int: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def precision(self) -> str:
        """Say what came of it: "bf16" or "fp8"."""
    @property
    def head_precision(self) -> str: ...
    @property
    def kv_precision(self) -> str: ...
    def logits(self, tokens: Sequence[int], chunk: int = 0) -> memoryview:
        """As `Model.logits`."""

class Engine:
    """schedule -> run -> commit, in its own thread.

    options: block_size (16), num_blocks or kv_memory_bytes, max_running (64), token_budget (tokens a step,
    512, on a GPU 4096), max_mixed_step_ratio (1.8: prefill beside decode rows makes a step at most so many
    times as long as without, as learned from the steps' times; 0: no bound), use_graphs (True; GPU alone),
    is_deterministic (False; on a GPU: bits follow from the sequence alone, as they always do on the CPU),
    context_length (0: the model's), pipeline_depth (1), prefix_cache (True), cache_identity, tier_bytes (0:
    no second KV tier), tier_folder (empty: in memory, else in a file there). `token_bytes[i]` is the raw text
    of token i (empty for special tokens, which never reach the text). `stop_ids` end a sequence and are not
    text. Raises RuntimeError saying why where the GPU does not compute the model deterministically.
    """

    def __init__(
        self,
        model: Model | CudaModel,
        token_bytes: Sequence[bytes],
        stop_ids: Sequence[int],
        options: dict[str, Any],
    ) -> None: ...
    @property
    def event_fd(self) -> int: ...
    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together: the least of option, model and KV pool."""
    def submit(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 0,
        stop: Sequence[bytes] = (),
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        min_tokens: int = 0,
        logprobs: int = -1,
        priority: int = 0,
        cache_salt: str = "",
        top_a: float = 0.0,
        logit_bias: Mapping[int, float] = ...,
        grammar: bool = False,
        drops_space: bool = False,
        prompt_logprobs: int = -1,
    ) -> int:
        """Queue a sequence, return its id. Raises ValueError if it can never run (too long, empty).

        With `grammar` each of its samples waits for a mask: see `mask_requests`. With `drops_space` one
        space at the very start of the answer is no part of its text. With `prompt_logprobs` from 0 on, every
        prompt token but the first is reported on, with that many of the likeliest beside it; such a prompt
        takes no prefix hits, and `max_tokens` may be 0.
        """
    def abort(self, sequence: int) -> None:
        """End a sequence; its blocks are free within a step. Unknown or finished ids are ignored."""
    def drain(
        self,
    ) -> list[
        tuple[
            int,
            bytes,
            int,
            list[tuple[int, float, list[tuple[int, float]]]],
            int,
            str,
            float,
            list[tuple[int, float, int, list[tuple[int, float]]]],
        ]
    ]:
        """Events since the last call.

        (sequence, text, flags, logprobs, num_cached_tokens, detail, queue_s, prompt_logprobs):
        `text` is whole UTF-8 characters, stop strings already held back and removed. `flags`: 0 running,
        1 stop (eos, stop id or stop string), 2 length, 3 aborted, 4 error; bits 8.. are the number of new
        tokens this event accounts for (billed tokens). `logprobs`: (token, logprob, [(token, logprob)]).
        `num_cached_tokens`: prompt tokens from the prefix cache, set on the last event. `detail`: why,
        with flag 4; with flag 1 the stop string that ended it, empty for an id. `queue_s`: seconds from
        `submit` to the step that first worked on it; -1: it never came to that. `prompt_logprobs`, on the
        first event of a sequence that wants them: (token, logprob, rank, [(token, logprob)]) of prompt tokens
        1 to the last. Makes `event_fd` unreadable again.
        """
    def mask_requests(self, timeout: float) -> list[tuple[int, int, int, bool]]:
        """Take the wishes for masks: (sequence, token, index, has_ended). Waits `timeout` s at most for one.

        `token` was sampled just now (-1: the sequence has begun) and is generated token number `index` - 1; a
        mask is wanted for number `index`. With `has_ended` none is: the sequence is over. Empty at once
        after `close`. Steps wait for the masks of all their rows, so a thread of its own must answer.
        """
    def give_masks(self, masks: Sequence[tuple[int, int, bytes]]) -> None:
        """Answer requests: (sequence, index, words), words little-endian uint32 [ceil(vocab_size / 32)].

        Bit id % 32 of word id // 32: the id may be sampled. Raises ValueError for the wrong number of words.
        """
    def refuse_mask(self, sequence: int, index: int, error: str) -> None:
        """End a sequence with an error: its grammar cannot go on."""
    def stats(self) -> dict[str, float]:
        """waiting, running, waiting_tokens, blocks_total, blocks_free, blocks_cached, steps, tokens, ..."""
    def close(self) -> None:
        """Abort everything, stop the thread, join it."""
