"""The normaliser in a test's words: run payloads through one stream, or read one whole answer."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.errors import UpstreamError
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.normalise import StreamNormaliser, complete
from ionrouter.redact import Redactor
from ionrouter.schema.events import Complete
from tests.support.endpoints import Answer
from tests.support.wire import chunk

ERRORS = ErrorReader("Up", Redactor())


def read(*payloads: Any, done: bool = True, n: int = 1, kind: Any = "chat") -> Answer:
    """Run payloads through one stream to its end; errors of the upstream land in `.error`."""
    stream, answer = StreamNormaliser(kind, ERRORS, n), Answer()
    try:
        for payload in payloads:
            if (event := stream.chunk(payload)) is not None:
                answer.events.append(event)
        answer.events.extend(stream.end(is_done=done))
    except UpstreamError as error:
        answer.error = error
    return answer


def whole(body: dict[str, Any], kind: Any = "chat") -> Complete:
    return complete(kind, body, ERRORS)


def message(content: Any = "hi", finish: Any = "stop", **extra: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **extra},
        "finish_reason": finish,
    }
    return {"id": "c", "choices": [choice]}


def failure(body: Any, kind: Any = "chat") -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        complete(kind, body, ERRORS)
    return caught.value


HI = chunk({"content": "hi"})
STOP = chunk({}, "stop")
