"""Decoder shapes: small ones that reach every path, and the ones that speed is judged on."""

from __future__ import annotations

from ion_cuda import Shape

SMALL = {
    "llama, 4 heads a KV head": Shape(3, 512, 8, 2, 64, 1024, 1000, rms_eps=1e-5, rope_theta=5e5),
    "qwen2, 7 heads a KV head, bias": Shape(3, 896, 14, 2, 128, 1536, 2003, has_qkv_bias=True),
    "qwen3, norms of q and k, tied": Shape(
        3, 512, 8, 4, 128, 1024, 1511, has_qk_norm=True, is_head_tied=True
    ),
    "smollm2, 3 heads a KV head, tied": Shape(3, 576, 9, 3, 64, 1536, 3000, is_head_tied=True),
    "mistral, windows of 40 and 0": Shape(4, 512, 8, 2, 64, 1024, 1000, windows=(40, 0, 40, 300)),
    "windows everywhere": Shape(3, 512, 8, 8, 64, 1024, 1000, windows=(70, 50, 33)),
    "20 heads a KV head, head_dim 32": Shape(2, 640, 20, 1, 32, 1024, 1000),
    "whole tiles, split and stream-K": Shape(2, 896, 14, 2, 128, 8960, 20480, has_qkv_bias=True),
    "whole tiles, small": Shape(3, 512, 8, 2, 64, 1024, 1024),
    "whole tiles, norms of q and k, 5 heads": Shape(3, 384, 3, 1, 128, 1024, 1024, has_qk_norm=True),
    "head_dim 96": Shape(2, 768, 8, 4, 96, 1024, 1000),
}

# Wide enough for a product of many rows to add to the residual stream by itself.
WIDE = "whole tiles, wide"
LARGE = {WIDE: Shape(2, 2048, 16, 4, 128, 2048, 1024, has_qkv_bias=True)}

JUDGED = {
    "qwen2.5-7b": Shape(28, 3584, 28, 4, 128, 18944, 152064, has_qkv_bias=True),
    "llama-3.1-8b": Shape(32, 4096, 32, 8, 128, 14336, 128256, rms_eps=1e-5, rope_theta=5e5),
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3072, 151936, has_qk_norm=True, is_head_tied=True),
}
