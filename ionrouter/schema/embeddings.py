"""POST /embeddings as it arrives and as it is answered. Asks upstreams for plain numbers, whatever the client
wants, and writes what the client wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from ionrouter.schema.answers import Unstreamed, cost_fields
from ionrouter.schema.chat import PARTS, Part
from ionrouter.schema.common import PositiveInt, TextRequest
from ionrouter.schema.events import Committed, Complete, Finished
from ionrouter.schema.usage import CHARACTERS_PER_TOKEN, Usage
from ionrouter.schema.vectors import rows_in

MAX_INPUTS = 2048

Encoding = Literal["float", "base64"]
NotEmpty = Annotated[StrictStr, Field(min_length=1)]
TokenIds = Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=1)]


class MixedInput(BaseModel):
    """One input of several parts: text, images, sound."""

    model_config = ConfigDict(extra="forbid")
    content: Annotated[list[Part], Field(min_length=1)]


Several = Annotated[
    list[NotEmpty] | list[TokenIds] | list[MixedInput], Field(min_length=1, max_length=MAX_INPUTS)
]


class EmbeddingsRequest(TextRequest):
    """OpenAI's embeddings request with OpenRouter's routing fields."""

    input: NotEmpty | TokenIds | Several
    dimensions: PositiveInt | None = None
    encoding_format: Encoding | None = None
    input_type: StrictStr | None = None

    @model_validator(mode="after")
    def _does_not_stream(self) -> EmbeddingsRequest:
        if self.stream:
            raise ValueError("stream: embeddings are not streamed; leave it out")
        return self

    def inputs(self) -> Sequence[str | list[int] | MixedInput]:
        """The inputs, one for each vector of the answer."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [[token for token in self.input if isinstance(token, int)]]
        return [item for item in self.input if not isinstance(item, int)]

    def input_modalities(self) -> frozenset[str]:
        parts = [part for item in self.inputs() if isinstance(item, MixedInput) for part in item.content]
        return frozenset(PARTS[part.type][2] for part in parts) or frozenset({"text"})

    def num_characters(self) -> int:
        return sum(map(_length, self.inputs()))

    def longest(self) -> int | None:
        """Each input must fit the model, not all together."""
        return max(map(_length, self.inputs()))


def num_inputs(given: Any) -> int:
    """Count the inputs of a body, one for each vector of its answer: a list of token ids is one."""
    return len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1


def _length(item: str | list[int] | MixedInput) -> int:
    if isinstance(item, str):
        return len(item)
    if isinstance(item, list):
        return CHARACTERS_PER_TOKEN * len(item)
    return sum(len((part.model_extra or {})["text"]) for part in item.content if part.type == "text")


@dataclass(slots=True)
class EmbeddingsAnswer(Unstreamed):
    """The one answer to a request for vectors."""

    id: str
    model: str  # until commit the requested one
    encoding: Encoding
    provider: str = ""

    def commit(self, committed: Committed) -> None:
        """Note who serves."""
        self.model, self.provider = committed.model_id, committed.provider_name

    def whole(self, complete: Complete, finished: Finished) -> dict[str, Any]:
        """Write the answer: the upstream's vectors in the form that was asked for."""
        usage = finished.usage
        return {
            "object": "list",
            "id": self.id,
            "model": self.model,
            "provider": self.provider,
            "data": rows_in(self.encoding, complete.data),
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "total_tokens": usage.total_tokens,
                **_media(usage),
                **cost_fields(finished.cost),
            },
        }


def _media(usage: Usage) -> dict[str, Any]:
    """The input's tokens by medium, where the upstream tells several apart; none that is 0."""
    told = asdict(usage.prompt_parts)
    told["text_tokens"] = usage.prompt_tokens - sum(told.values())
    parts = {name: count for name, count in told.items() if count > 0}
    return {"prompt_tokens_details": parts} if len(parts) > 1 else {}
