"""Sections of routes.yaml about moving traffic: deadlines, breakers, hedges, shadows, canaries."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ionrouter.routing.spec_values import HedgeDelay, Percent, Seconds, Share, Spec, Text


class TimeoutsSpec(Spec):
    """Deadlines in seconds. What is left out comes from the level above."""

    connect: Seconds | None = Field(default=None, description="Seconds to open a connection.")
    first_token: Seconds | None = Field(
        default=None, description="Seconds from an attempt's start to its answer."
    )
    inter_token: Seconds | None = Field(
        default=None, description="Seconds of silence allowed inside an answer."
    )
    total: Seconds | None = Field(
        default=None, description="Seconds from the arrival of the request to the end of the answer."
    )


class HedgeSpec(Spec):
    """A second attempt beside a slow first one."""

    after: HedgeDelay = Field(
        default=None,
        description="Seconds without an answer before another endpoint is asked, too; p95, the default: what "
        "19 of 20 recent answers of this endpoint took.",
    )
    floor: Seconds = Field(default=0.2, description="Seconds that are waited at least.")
    budget: Share = Field(default=0.05, description="Second attempts at most, as a share of requests.")


class ShadowSpec(Spec):
    """A copy of some requests, whose answers nobody sees."""

    endpoint: Text = Field(
        description="One of the model's endpoints by provider, tag or id, or any endpoint's id."
    )
    share: Share = Field(default=0.05, description="Share of requests that are copied.")
    max_running: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=4, description="Copies under way at once; more are left out."
    )


class CanarySpec(Spec):
    """A new endpoint beside the old ones."""

    endpoint: Text = Field(description="One of the model's endpoints by provider, tag or id.")
    percent: Percent = Field(description="Percentage of sessions, users or keys that it gets.")


class BreakerSpec(Spec):
    """When an endpoint gets no traffic. What is left out comes from the level above."""

    failures: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="Failures in a row that open it; default 3."
    )
    error_rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Share of failures among at least 10 recent requests that opens it; default 0.5.",
    )
    cooldown: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] | None = Field(
        default=None, description="Seconds that it is open the first time; default 10, 0: never."
    )
    max_cooldown: Seconds | None = Field(
        default=None, description="Seconds that it is open at most: each time is twice the last; default 300."
    )
