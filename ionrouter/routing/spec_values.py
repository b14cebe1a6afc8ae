"""What the sections of routes.yaml are made of: the rule for all of them, and the kinds of values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ionrouter.routing.values import (
    byte_count,
    env_variable,
    header_value,
    hedge_delay,
    model_name,
    probe_seconds,
    source_of_weights,
    step_ratio,
    unix_seconds,
    upstream_url,
)

Strategy = Literal["expected-cost", "price", "throughput", "latency", "weighted", "round-robin", "least-busy"]
Privacy = Literal["allow", "deny"]
InputModality = Literal["text", "image", "audio", "file", "video"]
OutputModality = Literal["text", "image", "audio", "video", "embeddings", "rerank"]
# OpenRouter's list of quantizations.
Quantization = Literal[
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32", "unknown"
]  # fmt: skip

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Percent = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
ModelName = Annotated[
    str, Field(min_length=1, max_length=256, pattern=r"^[^\s*]+$"), AfterValidator(model_name)
]
Slug = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9._-]*$")]
EnvVariable = Annotated[str, BeforeValidator(env_variable)]
HeaderValue = Annotated[str, BeforeValidator(header_value)]
Url = Annotated[str, BeforeValidator(upstream_url)]
Bytes = Annotated[
    int, BeforeValidator(byte_count), Field(gt=0, json_schema_extra={"type": ["integer", "string"]})
]
StepRatio = Annotated[
    float,
    AfterValidator(step_ratio),
    Field(
        allow_inf_nan=False, json_schema_extra={"anyOf": [{"type": "number", "minimum": 1}, {"enum": [0]}]}
    ),
]
Weights = Annotated[str, BeforeValidator(source_of_weights)]
Created = Annotated[
    int, BeforeValidator(unix_seconds), Field(ge=0, json_schema_extra={"type": ["integer", "string"]})
]
HedgeDelay = Annotated[
    Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None,
    BeforeValidator(hedge_delay),
    Field(json_schema_extra={"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"enum": ["p95"]}]}),
]
ProbeSeconds = Annotated[
    float,
    BeforeValidator(probe_seconds),
    Field(ge=0, le=86_400, allow_inf_nan=False, json_schema_extra={"type": ["boolean", "number"]}),
]


class Spec(BaseModel):
    """Common rule: an unknown field is an error, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)
