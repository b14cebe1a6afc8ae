"""What a model's parts are held in, by names that the scripts take: "fp8-kv8-head8"."""

from __future__ import annotations

MATRIX_TYPES = ("bf16", "fp8")  # by IonCudaMatrixType
# Of the layers' matrices; -kv8, -head8: the KV cache or the head is fp8, which is else bf16.
PRECISIONS = ("bf16", "fp8", "bf16-kv8", "bf16-head8", "fp8-kv8", "fp8-head8", "fp8-kv8-head8")
CHECKED = ("bf16", "fp8", "bf16-kv8")  # by checks that nobody told which: both kinds of each part


def matrix_precision(precision: str) -> str:
    """Of the layers: bf16-kv8 has bf16."""
    return precision.split("-")[0]


def has_fp8_kv(precision: str) -> bool:
    return "kv8" in precision.split("-")


def has_fp8_head(precision: str) -> bool:
    return "head8" in precision.split("-")
