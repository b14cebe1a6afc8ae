"""A loaded routes.yaml: checked values, where they stand in the file, and what was learned elsewhere."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ionrouter.errors import Problem
from ionrouter.routing.prices import PriceBook
from ionrouter.routing.spec import CatalogSpec, ProviderSpec
from ionrouter.routing.upstream_list import UpstreamModel
from ionrouter.routing.values import Reach, reach
from ionrouter.routing.yaml_source import Source


@dataclass(frozen=True, slots=True)
class Catalog:
    """What compile_table needs. `discovered` is by provider slug and may be empty."""

    spec: CatalogSpec
    source: Source
    prices: PriceBook = field(default_factory=PriceBook)
    discovered: Mapping[str, tuple[UpstreamModel, ...]] = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()

    @property
    def folder(self) -> Path:
        """Relative paths in the file start here."""
        # Links are not followed: a mounted ConfigMap's real folder has another name after every change.
        return Path(os.path.abspath(self.source.path)).parent

    @property
    def version(self) -> str:
        """Hash of the file and of what was discovered."""
        if not self.discovered:
            return self.source.version
        digest = hashlib.sha256(self.source.version.encode())
        for slug in sorted(self.discovered):
            digest.update(repr((slug, self.discovered[slug])).encode())
        return digest.hexdigest()[:16]


def is_local(provider: ProviderSpec) -> bool:
    """Whether a provider computes on this machine or network: no account, no bill."""
    if provider.type in ("ion", "fake"):
        return True
    return (
        provider.type == "openai"
        and provider.base_url is not None
        and reach(provider.base_url) is not Reach.PUBLIC
        and not provider.keys
    )
