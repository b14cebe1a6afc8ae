"""What a running server is told from outside: IONROUTER_* variables, overridden by the command line.

Says how this process listens, logs, stores and stops. What to serve is in routes.yaml.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, IPvAnyNetwork, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from ionrouter.addresses import address_of
from ionrouter.errors import ConfigError, Problem

MIB = 1024 * 1024


def _xdg(variable: str, fallback: str) -> Path:
    root = os.environ.get(variable, "")
    # The XDG base directory specification: a relative path is invalid and is ignored.
    return (Path(root) if os.path.isabs(root) else Path.home() / fallback) / "ionrouter"


class Settings(BaseSettings):
    """Every IONROUTER_* setting; lists are comma-separated, and what is set to nothing is not set."""

    # Infinity is no number of seconds or dollars: windows, waits and JSON would each take it otherwise.
    model_config = SettingsConfigDict(
        env_prefix="IONROUTER_", extra="ignore", env_ignore_empty=True, allow_inf_nan=False
    )

    config: Path | None = Field(None, description="routes.yaml; default: ./routes.yaml, else the shipped one")
    host: str = Field(
        "127.0.0.1", description="address to listen on; 0.0.0.0 is every IPv4 one, :: every one"
    )
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    no_auth: bool = Field(False, description="serve everybody who can reach a non-loopback address")
    require_keys: bool = Field(False, description="ask for keys on loopback too")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="further Host names to answer while keys are off; * answers all"
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="web origins that may call; * allows all"
    )
    state_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_STATE_HOME", ".local/state"),
        description="keys, spending, generations, statistics",
    )
    cache_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_CACHE_HOME", ".cache"),
        description="weights and other re-fetchables",
    )
    log_format: Literal["auto", "json", "console"] = Field("auto", description="auto: console on a terminal")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged"
    )
    max_body_bytes: int = Field(64 * MIB, ge=1024, description="largest request body")
    heartbeat_interval_s: float = Field(
        10.0, gt=0, description="silence on a stream before a comment is sent"
    )
    # Longer than clients keep connections that they may use again (httpx 5 s, nginx and load balancers 60 s,
    # Go 90 s): who closes first meets no request on its way.
    client_keepalive_s: float = Field(
        120.0, gt=0, description="how long a client's connection may be idle between two requests"
    )
    drain_delay_s: float = Field(5.0, ge=0, description="after SIGTERM: listening on, readiness 503")
    drain_timeout_s: float = Field(30.0, ge=0, description="then: time for requests in flight")
    stats_window_s: float = Field(
        1800.0, gt=0, description="window of the figures by which GET /models sorts"
    )
    log_prompts: bool = Field(
        False,
        description="keep prompts and answers for GET /generation/content (a management key reads them)",
    )
    keep_days: int = Field(
        400,
        ge=1,
        description="how long generations (and logged prompts) are kept; none is forgotten within half "
        "an hour of a start, or of a jump of the clock",
    )
    traces: Literal["auto", "on", "off"] = Field(
        "auto", description="OpenTelemetry traces; auto: when OTEL_EXPORTER_OTLP_ENDPOINT is set"
    )
    store_url: str | None = Field(
        None,
        description="postgresql://user:password@host/database, for several servers; default: a SQLite file",
    )
    store_sync: Literal["normal", "full"] = Field(
        "normal", description="full: an answer waits until its record would survive a power loss"
    )
    credits: float = Field(1_000_000.0, ge=0, description="USD that GET /credits shows as bought; no limit")
    max_upstream_connections: int = Field(
        16384, ge=1, description="connections to upstreams, all together (see also ulimit -Hn)"
    )
    fetch_media: bool = Field(
        True, description="fetch https:// images and files that a request names, for providers that do not"
    )
    response_cache_bytes: int = Field(
        64 * MIB,
        ge=0,
        description="memory for answers that callers ask to be kept (`X-OpenRouter-Cache`); 0 keeps none",
    )
    batch_concurrency: int = Field(
        4,
        ge=0,
        description="requests of batches that run at once, less one for each other answer that runs, but "
        "never less than one; 0: no Batch API",
    )
    batch_max_requests: int = Field(10_000, ge=1, description="requests in one batch")
    console: bool = Field(True, description="serve the web page at /console/")
    max_wrong_keys: int = Field(20, ge=1, description="wrong keys a minute and address before 429")

    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = Field(
        (), description="addresses or networks whose `X-Forwarded-For` says from where a request comes"
    )

    @field_validator("allowed_hosts", "cors_origins", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return (
            tuple(part.strip() for part in value.split(",") if part.strip())
            if isinstance(value, str)
            else value
        )

    @property
    def database_path(self) -> Path:
        return self.state_dir / "ionrouter.db"

    @property
    def management_key_path(self) -> Path:
        return self.state_dir / "management.key"

    @property
    def config_path(self) -> Path:
        """The routes.yaml in effect: the one given, the working folder's, or the shipped one."""
        if self.config is not None:
            return self.config
        here = Path("routes.yaml")
        return here if here.exists() else shipped_routes()


def shipped_routes() -> Path:
    """Where the shipped routes.yaml lies: at the top of a checkout, or inside an installed package."""
    packaged = Path(__file__).with_name("routes.yaml")  # a wheel puts it there
    return packaged if packaged.exists() else packaged.parents[1] / packaged.name


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on is reachable from this machine only."""
    address = address_of(host.strip("[]"))
    return host == "localhost" if address is None else address.is_loopback


def load_settings(**overrides: Any) -> Settings:
    """Read the environment; `overrides` that are not None win. Raises ConfigError naming each variable."""
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        raise ConfigError([_problem(dict(e)) for e in error.errors()]) from None


def _problem(error: dict[str, Any]) -> Problem:
    name = str(error["loc"][0])  # of a list the entry follows: it is the input
    return Problem(f"IONROUTER_{name.upper()}", f"{error['msg']}, got {error['input']!r}")
