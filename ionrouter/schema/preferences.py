"""A request's `provider` and `ionrouter` objects as they arrive. Unknown keys are errors; null is absent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool

from ionrouter.schema.fields import QUANTIZATIONS
from ionrouter.schema.request import Overrides, PercentileCutoffs, ProviderPreferences, SortKey


def _number(value: Any) -> Any:
    """Prices arrive as 0.5 and as "0.5" (documentation and schema of OpenRouter disagree)."""
    if isinstance(value, bool):
        raise ValueError("should be a number")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError("should be a number or a numeric string") from None
    return value


Price = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Cutoff = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class MaxPrice(_Closed):
    prompt: Price | None = None
    completion: Price | None = None
    request: Price | None = None
    image: Price | None = None
    audio: Price | None = None


class Percentiles(_Closed):
    p50: Cutoff | None = None
    p75: Cutoff | None = None
    p90: Cutoff | None = None
    p99: Cutoff | None = None


class Sort(_Closed):
    by: SortKey | None = None
    partition: Literal["model", "none"] | None = None


def _sort(value: Any) -> Any:
    return {"by": value} if isinstance(value, str) else value


def _cutoffs(value: Any) -> Any:
    return {"p50": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


def _quantizations(value: list[str]) -> list[str]:
    for name in value:
        if name not in QUANTIZATIONS:
            raise ValueError(f"'{name}' is no quantization; known: {', '.join(QUANTIZATIONS)}")
    return value


class ProviderObject(_Closed):
    """OpenRouter's provider preferences."""

    order: list[str] | None = None
    only: list[str] | None = None
    ignore: list[str] | None = None
    allow_fallbacks: StrictBool | None = None
    require_parameters: StrictBool | None = None
    data_collection: Literal["allow", "deny"] | None = None
    zdr: StrictBool | None = None
    enforce_distillable_text: StrictBool | None = None
    quantizations: Annotated[list[str], AfterValidator(_quantizations)] | None = None
    sort: Annotated[Sort | None, BeforeValidator(_sort)] = None
    max_price: MaxPrice | None = None
    preferred_min_throughput: Annotated[Percentiles | None, BeforeValidator(_cutoffs)] = None
    preferred_max_latency: Annotated[Percentiles | None, BeforeValidator(_cutoffs)] = None
    options: dict[str, dict[str, Any]] | None = None

    def preferences(self, route: Literal["fallback", "sort"] | None = None) -> ProviderPreferences:
        """Convert; the legacy top-level `route` counts where `sort.partition` is not given."""
        legacy: Literal["model", "none"] = "none" if route == "sort" else "model"
        return ProviderPreferences(
            order=tuple(self.order or ()),
            only=tuple(self.only or ()),
            ignore=tuple(self.ignore or ()),
            allow_fallbacks=self.allow_fallbacks is not False,
            require_parameters=self.require_parameters is True,
            data_collection=self.data_collection or "allow",
            zdr=self.zdr is True,
            enforce_distillable_text=self.enforce_distillable_text is True,
            quantizations=tuple(self.quantizations or ()),
            sort=self.sort.by if self.sort else None,
            sort_partition=(self.sort.partition if self.sort else None) or legacy,
            max_price=_given(self.max_price),
            preferred_min_throughput=_percentiles(self.preferred_min_throughput),
            preferred_max_latency=_percentiles(self.preferred_max_latency),
            options=self.options or {},
        )


def _given(model: BaseModel | None) -> dict[str, float]:
    return model.model_dump(exclude_none=True) if model is not None else {}


def _percentiles(model: Percentiles | None) -> PercentileCutoffs | None:
    values = _given(model)
    return PercentileCutoffs(values) if values else None


class IonrouterObject(_Closed):
    """Our own extension: `ionrouter: {strategy, value_of_time, explain}`."""

    strategy: str | None = None
    value_of_time: Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)] | None = None
    explain: StrictBool | None = None

    def overrides(self) -> Overrides:
        return Overrides(
            strategy=self.strategy, value_of_time=self.value_of_time, explain=self.explain is True
        )
