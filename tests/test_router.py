"""Router: resolve, select, dispatch together over the fake provider."""

from __future__ import annotations

from tests.support.routes import Bench, endpoint, request, route


async def test_a_request_is_answered_streaming_and_not() -> None:
    bench = Bench.of(route("m", endpoint("a", script={"text": "hello there"})))
    streamed = await bench.run(request(stream=True))
    whole = await bench.run(request())
    assert streamed.text == whole.text == "hello there"
    assert [type(e).__name__ for e in whole.events] == ["Committed", "Complete", "Finished"]
    assert [r.status for r in bench.heard.records] == [200, 200]
