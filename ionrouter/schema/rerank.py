"""POST /rerank as it arrives and as it is answered: documents in the order of their relevance to a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator

from ionrouter.schema.answers import Unstreamed, cost_fields
from ionrouter.schema.common import PositiveInt, TextRequest
from ionrouter.schema.events import Committed, Complete, Finished

MAX_DOCUMENTS = 10_000


class Document(BaseModel):
    """A document with an image, or with nothing but its text."""

    model_config = ConfigDict(extra="allow")
    text: StrictStr | None = None
    image: StrictStr | None = None

    @model_validator(mode="after")
    def _is_something(self) -> Document:
        if not self.text and not self.image:
            raise ValueError("a document needs text or image")
        return self


NotEmpty = Annotated[StrictStr, Field(min_length=1)]


class RerankRequest(TextRequest):
    """Cohere's rerank request, as OpenRouter takes it, with its routing fields."""

    query: NotEmpty
    documents: Annotated[list[NotEmpty | Document], Field(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: PositiveInt | None = None
    return_documents: StrictBool | None = None

    @model_validator(mode="after")
    def _does_not_stream(self) -> RerankRequest:
        if self.stream:
            raise ValueError("stream: rerank is not streamed; leave it out")
        return self

    def input_modalities(self) -> frozenset[str]:
        has_image = any(isinstance(document, Document) and document.image for document in self.documents)
        return frozenset({"text", "image"} if has_image else {"text"})

    def num_characters(self) -> int:
        """Rerankers read the query beside each document."""
        return sum(map(self._pair_length, self.documents))

    def longest(self) -> int | None:
        """Each pair must fit the model, not all together."""
        return max(map(self._pair_length, self.documents))

    def _pair_length(self, document: str | Document) -> int:
        return len(self.query) + len(document if isinstance(document, str) else document.text or "")


@dataclass(slots=True)
class RerankAnswer(Unstreamed):
    """The one answer to a rerank request."""

    id: str
    model: str  # until commit the requested one
    documents: tuple[str | Document, ...]
    top_n: int | None = None
    returns_documents: bool = True
    provider: str = ""

    def commit(self, committed: Committed) -> None:
        """Note who serves."""
        self.model, self.provider = committed.model_id, committed.provider_name

    def whole(self, complete: Complete, finished: Finished) -> dict[str, Any]:
        """Write the answer: the upstream's scores beside the caller's own documents."""
        units = complete.search_units
        usage = {"total_tokens": finished.usage.total_tokens, **cost_fields(finished.cost)}
        return {
            "id": self.id,
            "model": self.model,
            "provider": self.provider,
            "results": [self._result(row) for row in complete.data[: self.top_n]],
            "usage": usage if units is None else {"search_units": units, **usage},
        }

    def _result(self, row: Mapping[str, Any]) -> dict[str, Any]:
        document = self.documents[row["index"]]
        if not self.returns_documents:
            shown: dict[str, Any] = {}
        elif isinstance(document, str):
            shown = {"text": document}
        else:
            shown = document.model_dump(exclude_none=True)
        return {"index": row["index"], "relevance_score": row["relevance_score"], "document": shown}
