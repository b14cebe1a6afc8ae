"""The body of POST /analytics/query. Checks names against the tables of whoever answers: see `checked`."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from ionrouter.schema.whole_numbers import WHOLE

MAX_ROWS = 10_000
Scalar = StrictStr | Annotated[StrictInt, Field(ge=-(2**53), le=2**53)] | float


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TimeRange(_Closed):
    start: datetime.datetime
    end: datetime.datetime


class FilterObject(_Closed):
    field: StrictStr
    operator: StrictStr
    value: Scalar | Annotated[list[Scalar], Field(min_length=1, max_length=1000)]
    include_unset: StrictBool = False


class OrderBy(_Closed):
    field: StrictStr
    direction: Literal["asc", "desc"]


class AnalyticsQuery(_Closed):
    metrics: Annotated[list[StrictStr], Field(min_length=1, max_length=40)]
    dimensions: Annotated[list[StrictStr], Field(max_length=2)] = Field(default_factory=list)
    filters: Annotated[list[FilterObject], Field(max_length=20)] = Field(default_factory=list)
    granularity: StrictStr | None = None
    time_range: TimeRange | None = None
    order_by: OrderBy | None = None
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_ROWS), WHOLE] = 1000
    group_limit: Annotated[StrictInt, Field(ge=1, le=MAX_ROWS), WHOLE] | None = None
