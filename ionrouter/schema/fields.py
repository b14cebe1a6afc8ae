"""Which names in a request body mean what to the gateway. Tables only."""

from __future__ import annotations

# Parameters a model may or may not support: OpenRouter's `supported_parameters` vocabulary, and `n`.
MODEL_PARAMETERS = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "top_a", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "max_tokens", "max_completion_tokens", "logit_bias", "logprobs", "top_logprobs",
        "prediction", "seed", "response_format", "structured_outputs", "stop", "tools", "tool_choice",
        "parallel_tool_calls", "reasoning", "reasoning_effort", "web_search_options", "verbosity", "n",
    }
)  # fmt: skip

# Read here and never sent upstream under their own names.
GATEWAY_FIELDS = frozenset(
    {
        "model", "models", "stream", "stream_options", "provider", "route", "transforms", "plugins", "preset",
        "session_id", "trace", "metadata", "usage", "user", "ionrouter", "include_reasoning", "debug",
        "deferred_tools", "stop_server_tools_when", "max_tool_calls", "cache_control",
        "encoding_format",  # upstreams are asked for plain numbers, which all of them know
    }
)  # fmt: skip

# A key of a chat request's `reasoning`: the wish in Claude's own words, for Claude alone.
AS_CLAUDE = "thinking"

QUANTIZATIONS = (
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32", "unknown",
)  # fmt: skip
