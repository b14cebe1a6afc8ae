"""POST /completions (legacy) as it arrives: a raw prompt, no template. One prompt a request."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool, StrictInt, StrictStr, field_validator

from ionrouter.schema.common import CHARACTERS_PER_TOKEN, TextRequest

TokenIds = Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=1)]


class CompletionRequest(TextRequest):
    """OpenAI's legacy completion request; `prompt` is a string or token ids."""

    prompt: StrictStr | TokenIds
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    echo: StrictBool | None = None
    suffix: StrictStr | None = None
    best_of: Annotated[StrictInt, Field(ge=1)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _single(cls, value: object) -> object:
        """Unwrap a list of one prompt; several prompts in one request are refused by name."""
        if isinstance(value, list) and value and isinstance(value[0], str | list):
            if len(value) > 1:
                raise ValueError("several prompts in one request are not supported; send one request each")
            return value[0]
        return value

    def input_modalities(self) -> frozenset[str]:
        return frozenset({"text"})

    def num_characters(self) -> int:
        return len(self.prompt) * (1 if isinstance(self.prompt, str) else CHARACTERS_PER_TOKEN)
