"""Which names in a request body mean what to the gateway. Tables, and a question to one."""

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
        "cache_enabled", "cache_ttl_seconds",  # a preset's words about the response cache
        "encoding_format",  # upstreams are asked for plain numbers, which all of them know
    }
)  # fmt: skip

# A key of a chat request's `reasoning`: the wish in Claude's own words, for Claude alone.
AS_CLAUDE = "thinking"

# A key of an assistant's message whose thoughts, texts and calls come in another order than that one: their
# kinds as they come. For Claude alone, which checks where its signed thoughts stand.
TURN_ORDER = "turn_order"

# A key of a tool's message: how its result was, as schema/claudes_fields.py tells it. And one of a tool:
# fields that chat's tools do not have.
TOOL_RESULT = "tool_result"
TOOL_EXTRAS = "tool_extras"
OF_CLAUDE = frozenset({TURN_ORDER, TOOL_RESULT, TOOL_EXTRAS})

# What a client library, or another router, reads as an instruction: where to go, as whom, what else to do.
# Never from a caller to an upstream, by whatever way and whatever is configured.
_INSTRUCTIONS = frozenset(
    {
        "api_key", "api_base", "base_url", "url", "api_version", "api_type", "organization", "proxy",
        "headers", "extra_headers", "default_headers", "extra_query", "extra_body", "ssl_verify", "client",
        "custom_llm_provider", "model_list", "fallbacks", "context_window_fallback_dict", "deployment_id",
        "num_retries", "max_retries", "timeout", "request_timeout", "mock_response", "mock_tool_calls",
        "callbacks", "success_callback", "failure_callback", "caching", "cache", "logger_fn", "model_info",
        "acompletion", "shared_session", "preset_cache_key", "input_cost_per_token", "output_cost_per_token",
        "drop_params",
    }
)  # fmt: skip
_INSTRUCTION_PREFIXES = ("litellm_", "aws_", "vertex_", "azure_")


def is_instruction(name: str) -> bool:
    """Ask whether a field, its name in lower case, may never come from a caller."""
    return name in _INSTRUCTIONS or name.startswith(_INSTRUCTION_PREFIXES)


QUANTIZATIONS = (
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32", "unknown",
)  # fmt: skip
