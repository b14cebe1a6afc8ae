"""What `options` may hold, by type of provider. Knows no client, but what each of them reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ionrouter.errors import FailureClass
from ionrouter.routing.spec_values import Spec
from ionrouter.routing.table import ProviderType

_FAILURES = tuple(failure.value for failure in FailureClass)


def _failure(value: Any) -> Any:
    if isinstance(value, str) and value not in _FAILURES:
        raise ValueError(f"must be one of {', '.join(_FAILURES)}")
    return value


def _carrier(value: Any) -> Any:
    return "off" if value is False else value  # as older YAML reads a bare off


Count = Annotated[int, Field(ge=0)]
Wait = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class IonOptions(Spec):
    """The engine inside has fields of its own."""


class OpenAIOptions(Spec):
    """Of a server that speaks OpenAI's API."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    reasoning_field: Literal["reasoning", "reasoning_content"] | None = None


class LiteLLMOptions(OpenAIOptions):
    """The same, and who carries a call."""

    carrier: Annotated[Literal["auto", "off"], BeforeValidator(_carrier)] = "auto"


class ScriptOptions(Spec):
    """One call of a fake provider: the fields of providers.fake.Script."""

    text: str | None = None
    tokens: Count = 5
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = []
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter", "error"] | None = "stop"
    role_first: bool = True
    queue_s: Wait | None = None
    delay_s: Wait = 0.0
    gap_s: Wait = 0.0
    status: Annotated[int, Field(ge=100, le=599)] | None = None
    failure: Annotated[str, BeforeValidator(_failure)] | None = None
    message: str = ""
    code: str | None = None
    error_type: str | None = None
    param: str | None = None
    retry_after_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    cut_after: Count | None = None
    hang_after: Count | None = None
    refuse_connection: bool = False
    raises: str | None = None
    close_raises: bool = False
    usage: dict[str, int] | bool = True
    fail_times: Count | None = None


class FakeOptions(ScriptOptions):
    """A script for every call, or one for each."""

    scripts: list[ScriptOptions] | None = None


OPTIONS: Mapping[ProviderType, type[Spec]] = {
    "ion": IonOptions,
    "litellm": LiteLLMOptions,
    "openai": OpenAIOptions,
    "fake": FakeOptions,
}
