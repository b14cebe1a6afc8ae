"""How many bytes the KV cache of one model gets. Knows a model's shape and what is free only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ionrouter.errors import ConfigError

BLOCK_TOKENS = 16  # of a KV block
# Of what is free after the weights: the rest is for activations, the page cache and everybody else.
_SHARE_OF_FREE = 0.4
# The CPU shares its memory with the rest of the machine, and cached prefixes fill any pool in time: unless
# routes.yaml says otherwise, a small model stops at 2 GiB, a large one at twice its weights, and neither
# below one sequence of full length.
_SMALL_POOL_BYTES = 2 << 30
# A GPU is there to be filled: what is left is for activations.
_SHARE_OF_DEVICE = 0.9
_ELEMENT_BYTES = {"fast": 2, "deterministic": 2, "exact": 4}  # f16 and f32 KV (docs/engine.md, "KV layout")


class TooLittleMemory(ConfigError):
    """A model does not fit now; the message says how many bytes are needed and free."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The other engines of the process, as far as they matter to one that chooses its KV memory."""

    num_sharing: int = 0  # of those that say no kv_memory themselves
    kv_bytes: int = 0  # what these hold already
    coming_bytes: int = 0  # weights and stated kv_memory of those still to load


def bytes_per_token(config: Mapping[str, Any], numerics: str) -> int:
    """Say what one position of one sequence takes: K and V of every layer."""
    width = int(config["num_kv_heads"]) * int(config["head_dim"])
    return 2 * int(config["num_layers"]) * width * _ELEMENT_BYTES[numerics]


def choose_kv_bytes(
    config: Mapping[str, Any],
    numerics: str,
    max_running: int,
    *,
    weight_bytes: int,
    free_bytes: int,
    neighbours: Neighbours,
) -> int:
    """Choose an equal share of what all weights leave, never more than every sequence at full length fills.

    Raises TooLittleMemory, with both figures, if the share holds not even one block of each running sequence.
    """
    token_bytes = bytes_per_token(config, numerics)
    left = max(0, free_bytes + neighbours.kv_bytes - neighbours.coming_bytes)
    # A neighbour that took more than its share now keeps it: what is free is all there is to take.
    share = min(int(left * _SHARE_OF_FREE / (neighbours.num_sharing + 1)), free_bytes)
    most = token_bytes * int(config["context_length"]) * max_running
    least = token_bytes * BLOCK_TOKENS * max_running
    if share < least:
        raise TooLittleMemory(
            f"kv_memory: {least} bytes are needed for {max_running} sequences, {share} bytes are free; "
            f"free memory or lower max_running"
        )
    modest = max(_SMALL_POOL_BYTES, 2 * weight_bytes, token_bytes * int(config["context_length"]))
    return min(share, most, modest)


def choose_device_kv_bytes(
    config: Mapping[str, Any], max_running: int, *, free_bytes: int, neighbours: Neighbours
) -> int:
    """Choose an equal share of a GPU's memory; 0 for a model that has it alone: its runner knows best.

    `neighbours` are those on the same GPU. Raises TooLittleMemory as `choose_kv_bytes` does.
    """
    if neighbours.num_sharing == 0 and neighbours.coming_bytes == 0:
        return 0
    block_bytes = int(config["kv_block_bytes"])
    left = max(0, free_bytes + neighbours.kv_bytes - neighbours.coming_bytes)
    share = int(min(left / (neighbours.num_sharing + 1), free_bytes) * _SHARE_OF_DEVICE)
    least = block_bytes * max_running
    if share < least:
        raise TooLittleMemory(
            f"kv_memory: {least} bytes are needed on the GPU for {max_running} sequences, {share} bytes are "
            f"free; free memory or lower max_running"
        )
    return min(share, block_bytes * -(-int(config["context_length"]) // BLOCK_TOKENS) * max_running)
