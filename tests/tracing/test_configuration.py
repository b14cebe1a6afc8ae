"""When traces are wanted, by IONROUTER_TRACES and the OTEL_* variables."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ionrouter.errors import ConfigError
from ionrouter.tracing.configuration import Mode, collector, secrets, wants_traces

HERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("mode", "env", "wanted"),
    [
        ("auto", {}, False),
        ("auto", {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        ("auto", {"OTEL_TRACES_SAMPLER": "always_on"}, False),
        ("auto", HERE, True),
        ("auto", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c.example/v1/traces"}, True),
        ("on", {}, True),
        ("off", HERE, False),
        ("on", {"OTEL_SDK_DISABLED": "TRUE"}, False),
        ("on", {"OTEL_TRACES_EXPORTER": "none"}, False),
        ("auto", {**HERE, "OTEL_TRACES_EXPORTER": "otlp"}, True),
        ("auto", {**HERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        # The signal's own variables go before the general ones.
        ("auto", {**HERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                  "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, True),
    ],
)  # fmt: skip
def test_when_traces_are_wanted(mode: Mode, env: Mapping[str, str], wanted: bool) -> None:
    assert wants_traces(mode, env) is wanted


def test_every_variable_in_the_way_is_named() -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
        "OTEL_TRACES_EXPORTER": "jaeger",
    }
    with pytest.raises(ConfigError) as caught:
        wants_traces("auto", env)
    assert {problem.path for problem in caught.value.problems} == {*env}


def test_the_log_shows_no_secret_of_the_collectors_address() -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://user:word@c.example:4318/x?key=secret"}
    assert collector(env) == "https://c.example:4318/x"
    assert collector({}) == "http://localhost:4318"


def test_values_of_headers_are_secrets_in_every_form() -> None:
    found = secrets({"OTEL_EXPORTER_OTLP_HEADERS": "api-key=abc%2Fdef, Authorization=Basic%20dXNlcjpw"})
    assert {"abc%2Fdef", "abc/def", "Basic dXNlcjpw", "dXNlcjpw"} <= {*found}
    assert secrets({}) == []
