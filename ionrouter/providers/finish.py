"""The five finish reasons out of the many native ones. A table and a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ionrouter.schema.events import FinishReason

_NATIVE: dict[FinishReason, str] = {
    "stop": "stop eos eos_token end_turn stop_sequence stop_sequences end stopped complete completed finish "
    "finished done done_reason_stop pause_turn stop_token",
    "length": "length max_tokens max_output_tokens max_new_tokens max_length model_length token_limit "
    "context_length model_context_window_exceeded max_context_length incomplete",
    "tool_calls": "tool_calls tool_call tool_use function_call function_calls",
    "content_filter": "content_filter content_filtered safety refusal recitation blocklist "
    "prohibited_content spii language image_safety sensitive guardrail_intervened policy content_policy",
    "error": "error abort aborted cancelled canceled failed failure malformed_function_call "
    "unexpected_tool_call malformed_response insufficient_system_resource engine_error other_error "
    "network_error error_toxic timeout",
}
_BY_NATIVE: dict[str, FinishReason] = {
    native: reason for reason, natives in _NATIVE.items() for native in natives.split()
}


def read_finish(
    native: Any, redact: Callable[[str], str] = str, *, has_tool_calls: bool
) -> tuple[FinishReason | None, str | None]:
    """Return (ours, theirs) of a native reason: ("stop", "eos"). Empty and null are no reason yet.

    An unknown reason ends the answer, so it reads as stop. A stop after tool calls is `tool_calls`:
    agents decide by this field, and several providers say plain stop there.
    """
    # It is kept with every request: a megabyte of blanks around a word is none of it.
    if native is None or native is False or not (text := str(native).strip()):
        return None, None
    name = text.lower().replace("-", "_").replace(" ", "_").removeprefix("finish_reason_")
    known = _BY_NATIVE.get(name)
    if known is None:
        text = redact(text)  # an upstream may say anything there
    reason = known or ("error" if name.startswith("malformed") else "stop")
    if reason == "stop" and has_tool_calls:
        return "tool_calls", text
    return reason, text
