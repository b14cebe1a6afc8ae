"""POST /completions (legacy) as it arrives: raw prompts, no template."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool, StrictInt, StrictStr, model_validator

from ionrouter.schema.common import TextRequest
from ionrouter.schema.usage import CHARACTERS_PER_TOKEN
from ionrouter.schema.whole_numbers import WHOLE

MAX_PROMPTS = 128

TokenIds = Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=1)]
Prompts = Annotated[list[StrictStr] | list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]


class CompletionRequest(TextRequest):
    """OpenAI's legacy completion request: one prompt or several, each a string or token ids."""

    prompt: StrictStr | TokenIds | Prompts
    max_tokens: Annotated[StrictInt, Field(ge=0), WHOLE] | None = None
    logprobs: Annotated[StrictInt, Field(ge=0, le=20), WHOLE] | None = None
    echo: StrictBool | None = None
    suffix: StrictStr | None = None
    best_of: Annotated[StrictInt, Field(ge=1), WHOLE] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 makes sense with echo only, to score a prompt")
        return self

    def input_modalities(self) -> frozenset[str]:
        return frozenset({"text"})

    def num_characters(self) -> int:
        return len(self.prompt) if isinstance(self.prompt, str) else sum(map(_length, self.prompt))

    def longest(self) -> int | None:
        if isinstance(self.prompt, str) or any(isinstance(item, int) for item in self.prompt):
            return None
        return max(map(_length, self.prompt))


def _length(item: str | int | list[int]) -> int:
    if isinstance(item, str):
        return len(item)
    return CHARACTERS_PER_TOKEN * (1 if isinstance(item, int) else len(item))
