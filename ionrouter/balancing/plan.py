"""What select hands to dispatch and to explain: candidates in order, and everybody else with the reason."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from ionrouter.balancing.assignment import Assignment
from ionrouter.balancing.cost import Outlook, Score
from ionrouter.balancing.screen import Exclusion
from ionrouter.routing.table import Endpoint, ModelRoute
from ionrouter.schema.load import context_room


class Candidate(Struct, frozen=True):
    """One endpoint that may serve this request, weighed."""

    endpoint: Endpoint
    route: ModelRoute
    tier: int  # 0: the model asked for; then its fallbacks
    outlook: Outlook
    score: Score
    share: float = 0.0  # probability of being tried first
    is_exploring: bool = False  # drawn to refresh an old sample, not for its score
    is_forced: bool = False  # its breaker is open, and nobody else is left
    steps_down_from: str | None = None  # the first pick's quantization, where this one has fewer bits
    engine_length: int | None = None  # the context length of the engine inside that answers for it

    @property
    def room(self) -> int | None:
        """Tokens of prompt and answer together, as far as known."""
        return context_room(self.endpoint.context_length, self.engine_length)


class Choice(Struct, frozen=True):
    """How a model's endpoints are ordered for one request."""

    strategy: str  # one of the strategies, or `sort:price` and the like: a strict order by one quality
    source: str  # the field that says so: provider.sort, :nitro, ionrouter.strategy, models.NAME.strategy ...


class Plan(Struct, frozen=True):
    """The order in which to try. Empty `candidates`: nobody may serve this request now."""

    routes: tuple[ModelRoute, ...]
    strategy: str  # the first candidate's model's
    candidates: tuple[Candidate, ...]
    exclusions: tuple[Exclusion, ...]
    reason: str = ""  # why the first one is first
    assignments: tuple[Assignment, ...] = ()  # arms of splits that the first one is in
    choices: Mapping[str, Choice] = field(default_factory=dict)  # by model
