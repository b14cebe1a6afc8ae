"""A fault inside tracing stays inside: the request must not notice."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from ionrouter.schema.events import RequestRecord
from ionrouter.schema.request import InferenceRequest
from ionrouter.tracing.attributes import Arrival
from ionrouter.tracing.spans import RequestTrace

ARRIVAL = Arrival("POST", "/v1/chat/completions", "/v1/chat/completions", "http")
REQUEST = InferenceRequest("gen-1", "chat", "m", {})
RECORD = RequestRecord("gen-1", "chat", "m", False, 0.0, 1.0, 200)


class BrokenSdk:
    def serve(self, *_: Any) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "use",
    [
        lambda trace: trace.attempt(None),
        lambda trace: trace.report(RECORD, request=REQUEST, strategy="price"),
        lambda trace: trace.end(200, "gen-1"),
    ],
)
def test_what_goes_wrong_is_logged_and_not_raised(use: Any) -> None:
    with capture_logs() as logs:
        assert use(RequestTrace(BrokenSdk(), ARRIVAL)) is None  # type: ignore[arg-type]
    assert [entry["event"] for entry in logs] == ["tracing_crashed"]
