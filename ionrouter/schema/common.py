"""The fields that every text request shares: sampling, routing, bookkeeping. Checks types and ranges only.

Unknown top-level fields are tolerated. null means absent; an explicit 0 is a value.
"""

from __future__ import annotations

import hashlib
import os
import re
import string
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from ionrouter.errors import RequestError
from ionrouter.schema.fields import GATEWAY_FIELDS, MODEL_PARAMETERS
from ionrouter.schema.plugins import PLUGINS, RESPONSE_HEALING
from ionrouter.schema.preferences import IonrouterObject, ProviderObject
from ionrouter.schema.request import NOBODY, Client, InferenceRequest, Kind, Overrides, ProviderPreferences
from ionrouter.schema.usage import CHARACTERS_PER_TOKEN
from ionrouter.schema.whole_numbers import WHOLE, Integer, with_whole

MAX_MODELS = 1024  # attempts are bounded elsewhere; this bounds the work of resolving
MAX_SESSION_ID = 256  # characters; sessions are remembered, and kept with every request

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Penalty = Annotated[Number, Field(ge=-2, le=2)]
Unit = Annotated[Number, Field(ge=0, le=1)]
Twofold = Annotated[Number, Field(ge=0, le=2)]
Bias = Annotated[Number, Field(ge=-100, le=100)]
PositiveInt = Annotated[StrictInt, Field(ge=1), WHOLE]
ModelName = Annotated[StrictStr, Field(min_length=1, max_length=512)]
Effort = Literal["max", "xhigh", "high", "medium", "low", "minimal", "none"]
MAX_TOOL_NAME = 128  # Claude's limit; OpenAI says 64 itself, and names of MCP servers' tools are longer
ToolName = Annotated[StrictStr, Field(min_length=1, max_length=MAX_TOOL_NAME)]
Stop = Annotated[list[StrictStr], Field(max_length=16)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow")
    include_usage: StrictBool | None = None


class Plugin(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: StrictStr
    enabled: StrictBool | None = None

    @model_validator(mode="after")
    def _supported(self) -> Plugin:
        if self.enabled is False:
            return self
        if self.id not in PLUGINS:
            raise ValueError(f"plugin '{self.id}' is not supported; known: {', '.join(PLUGINS)}")
        for name, value in (self.model_extra or {}).items():
            allowed = PLUGINS[self.id].get(name)
            if value is not None and (allowed is None or value not in allowed):
                raise ValueError(f"plugin '{self.id}' does not take {name} {value!r}")
        return self


class Reasoning(BaseModel):
    model_config = ConfigDict(extra="allow")
    effort: Effort | None = None
    max_tokens: Annotated[StrictInt, Field(ge=0), WHOLE] | None = None
    exclude: StrictBool | None = None
    enabled: StrictBool | None = None

    @model_validator(mode="after")
    def _one_budget(self) -> Reasoning:
        if self.effort is not None and self.max_tokens is not None:
            raise ValueError("give effort or max_tokens, not both")
        return self


_NO_PREFERENCES, _NO_OVERRIDES = ProviderPreferences(), Overrides()


class TextRequest(BaseModel):
    """What chat and completions have in common."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: ModelName | None = None
    models: Annotated[list[ModelName], Field(max_length=MAX_MODELS)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    temperature: Twofold | None = None
    top_p: Unit | None = None
    top_k: Annotated[StrictInt, Field(ge=-1), WHOLE] | None = None  # 0 and -1: off
    min_p: Unit | None = None
    top_a: Unit | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=2)] | None = None
    seed: Integer | None = None
    n: Annotated[StrictInt, Field(ge=1, le=128), WHOLE] | None = None
    logit_bias: dict[str, Bias] | None = None
    prompt_logprobs: Annotated[StrictInt, Field(ge=0, le=20), WHOLE] | None = None  # vLLM's
    stop: StrictStr | Stop | None = None
    reasoning: Reasoning | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: StrictBool | None = None
    provider: ProviderObject | None = None
    route: Literal["fallback", "sort"] | None = None
    transforms: list[Literal["middle-out"]] | None = None
    plugins: list[Plugin] | None = None
    preset: StrictStr | None = None
    session_id: Annotated[StrictStr, Field(max_length=MAX_SESSION_ID)] | None = None
    prompt_cache_key: StrictStr | None = None
    user: StrictStr | None = None
    metadata: dict[str, Any] | None = None
    trace: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    service_tier: StrictStr | None = None
    ionrouter: IonrouterObject | None = None

    @model_validator(mode="after")
    def _consistent(self) -> TextRequest:
        if self.reasoning_effort is not None:
            self._check_effort()
        if self.stream and self.prompt_logprobs is not None:
            raise ValueError(
                "prompt_logprobs: not with stream; on /completions echo with logprobs is streamed"
            )
        return self

    def _check_effort(self) -> None:
        effort = self.reasoning.effort if self.reasoning else None
        budget = self.reasoning.max_tokens if self.reasoning else None
        if budget is not None:
            raise ValueError("reasoning_effort: give this or reasoning.max_tokens, not both")
        if effort is not None and effort != self.reasoning_effort:
            raise ValueError(
                f"reasoning_effort: '{self.reasoning_effort}' contradicts reasoning.effort '{effort}'"
            )

    def to_request(
        self,
        body: Mapping[str, Any],
        *,
        kind: Kind,
        request_id: str,
        characters: int,
        modalities: frozenset[str],
        session_id: str | None,
        key_id: str | None,
        arrived_at: float,
        longest: int | None = None,
        client: Client = NOBODY,
    ) -> InferenceRequest:
        """Freeze: gateway-only names out of `body` (the JSON this model was made of), the rest as it came.

        `characters` are those of all prompts, `longest` those of the longest where there are several.
        """
        model, *others = self._wanted_models()
        upstream, kept_here = _parted(body)
        if self.include_reasoning is False and not self.reasoning:
            upstream["reasoning"] = {"exclude": True}
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        overrides = self.ionrouter.overrides() if self.ionrouter else _NO_OVERRIDES
        if "debug" in kept_here and kind == "chat" and self.stream and _echoes(kept_here["debug"]):
            overrides = replace(overrides, echoes=True)
        return InferenceRequest(
            id=request_id,
            kind=kind,
            model=model,
            models=tuple(others),
            body=upstream,
            stream=self.stream is True,
            parameters=MODEL_PARAMETERS.intersection(upstream),
            input_modalities=modalities,
            preferences=self._preferences(),
            overrides=overrides,
            prompt_tokens=-(-characters // CHARACTERS_PER_TOKEN),
            context_tokens=None if longest is None else -(-longest // CHARACTERS_PER_TOKEN),
            max_tokens=limit,
            service_tier=self.service_tier,
            session_id=self.session_id or session_id or _session_of(self.prompt_cache_key),
            key_id=key_id,
            arrived_at=arrived_at,
            client=client,
            gateway_fields=kept_here,
        )

    def longest(self) -> int | None:
        """Characters of the longest prompt, where a request may hold several."""
        return None

    def _wanted_models(self) -> list[str]:
        wanted = [] if self.model is None else [self.model]
        if self.models:
            wanted = list(dict.fromkeys([*wanted, *self.models]))  # a name given twice is tried once
        if not wanted:
            raise RequestError("model: is required", param="model")
        return wanted

    def _preferences(self) -> ProviderPreferences:
        if self.provider is None and self.route is None:
            return _NO_PREFERENCES
        return (self.provider or ProviderObject()).preferences(self.route)

    @property
    def hides_reasoning(self) -> bool:
        if self.reasoning is not None and self.reasoning.exclude is not None:
            return self.reasoning.exclude
        return self.include_reasoning is False

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted and have no effect here: what mends whole answers mends no stream."""
        if not self.stream or not self.plugins:
            return ()
        enabled = [plugin.id for plugin in self.plugins if plugin.enabled is not False]
        return ("plugins",) if RESPONSE_HEALING in enabled else ()


def _echoes(debug: Any) -> bool:
    """Whether a `debug` wants to see what is sent upstream."""
    return isinstance(debug, Mapping) and debug.get("echo_upstream_body") is True


def _session_of(cache_key: str | None) -> str | None:
    """Name the session of a `prompt_cache_key`, which has no greatest length: a long one by its hash."""
    if cache_key is None or len(cache_key) <= MAX_SESSION_ID:
        return cache_key
    digest = hashlib.blake2b(cache_key.encode("utf-8", "surrogatepass"), digest_size=16)
    return f"prompt_cache_key {digest.hexdigest()}"


def _parted(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What may go upstream, and the values of names that are the gateway's own; null is neither."""
    upstream: dict[str, Any] = {}
    gateway: dict[str, Any] = {}
    for name, value in body.items():
        if value is not None:
            (gateway if name in GATEWAY_FIELDS else upstream)[name] = with_whole(name, value)
    return upstream, gateway


_ALPHABET = (string.ascii_letters + string.digits).encode()
_LETTERS = (_ALPHABET * 5)[:256]  # of each byte; 118 bits in 20: a few letters come oftener
_NUM_DRAWN = 64  # at a time: a look into the system's chance costs more than all else of an id
_DRAWN: list[str] = []


def new_generation_id(now: float) -> str:
    """Make `gen-<unix seconds>-<20 alphanumerics>`; `now` is wall clock seconds."""
    if not _DRAWN:
        drawn = os.urandom(_NUM_DRAWN * 20).translate(_LETTERS).decode("ascii")
        _DRAWN.extend(drawn[at : at + 20] for at in range(0, len(drawn), 20))
    return f"gen-{int(now)}-{_DRAWN.pop()}"


GENERATION_ID = re.compile(r"gen-\d+-[A-Za-z0-9]{20}")
