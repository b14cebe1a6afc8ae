"""What routes.yaml may say about prices: USD per million tokens, as price lists print them."""

from __future__ import annotations

from pydantic import Field

from ionrouter.routing.spec_values import Spec, Usd


class TokenPricesSpec(Spec):
    """Prices of tokens, and of what an answer's usage tells apart among them."""

    prompt: Usd | None = Field(default=None, description="USD per million prompt tokens.")
    completion: Usd | None = Field(default=None, description="USD per million completion tokens.")
    cache_read: Usd | None = Field(default=None, description="USD per million cached prompt tokens.")
    cache_write: Usd | None = Field(
        default=None, description="USD per million prompt tokens written to the cache."
    )
    cache_write_1h: Usd | None = Field(
        default=None, description="The same of those that are kept for an hour; default: `cache_write`."
    )
    audio: Usd | None = Field(
        default=None, description="USD per million audio tokens of a prompt; default: `prompt`."
    )
    image_token: Usd | None = Field(
        default=None, description="USD per million image tokens of a prompt; default: `prompt`."
    )
    audio_output: Usd | None = Field(
        default=None, description="USD per million audio tokens of a completion; default: `completion`."
    )
    image_output: Usd | None = Field(
        default=None, description="USD per million image tokens of a completion; default: `completion`."
    )
    reasoning: Usd | None = Field(
        default=None, description="USD per million reasoning tokens; default: `completion`."
    )


class LongPricesSpec(TokenPricesSpec):
    """What a request costs whose prompt is long, all of it; what is left out costs as in a short one."""

    above: int = Field(ge=1, le=1_000_000_000, description="Prompt tokens that are not long yet.")


class TierPricesSpec(TokenPricesSpec):
    """What another level of service costs; what is left out costs as usual."""

    long: LongPricesSpec | None = Field(default=None, description="What long prompts cost, see below.")


class PricesSpec(TierPricesSpec):
    """All of an endpoint's."""

    request: Usd = Field(
        default=0.0,
        description="USD per request; of a ranking per search unit, where the upstream says those.",
    )
    flex: TierPricesSpec | None = Field(
        default=None, description="What it costs where the answer's `service_tier` is flex, see below."
    )
    priority: TierPricesSpec | None = Field(default=None, description="The same of priority.")
