"""Errors in what a catalog says of moving traffic: percentages, names of endpoints, breakers.

One function a rule; the tables are at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ionrouter.errors import Problem
from ionrouter.routing.document import Catalog
from ionrouter.routing.endpoints import breaker_of
from ionrouter.routing.models import compile_models
from ionrouter.routing.rules import offers
from ionrouter.routing.spec import ModelSpec
from ionrouter.routing.table import ModelRoute
from ionrouter.routing.traffic import find_shadow, meant, split_of
from ionrouter.routing.yaml_source import Loc

WHOLE = 100.0  # percent
ROUNDING = 1e-6

Routes = Mapping[str, ModelRoute]


def find_problems(catalog: Catalog) -> list[Problem]:
    """Run every rule; names of endpoints are looked up only in models all of whose endpoints can be read."""
    problems = [problem for rule in _ON_FILES for problem in rule(catalog)]
    sound = _sound(catalog)
    routes = compile_models(sound, {})
    for name, model in sound.spec.models.items():
        for rule in _ON_MODELS:
            problems += [catalog.source.problem(loc, text) for loc, text in rule(name, model, routes)]
    return problems


def _sound(catalog: Catalog) -> Catalog:
    providers = catalog.spec.providers
    models = {
        name: model
        for name, model in catalog.spec.models.items()
        if all(offer.provider in providers for offer in model.endpoints)
    }
    return replace(catalog, spec=catalog.spec.model_copy(update={"models": models}))


def _sums(catalog: Catalog) -> Iterator[Problem]:
    places: list[tuple[Loc, Mapping[str, float]]] = [
        (("models", name, "split"), model.split)
        for name, model in catalog.spec.models.items()
        if model.split is not None
    ]
    places += [(("splits", name), shares) for name, shares in catalog.spec.splits.items()]
    for loc, shares in places:
        if abs(sum(shares.values()) - WHOLE) > ROUNDING:
            yield catalog.source.problem(loc, f"percentages must add up to 100, not {sum(shares.values()):g}")


def _one_split(catalog: Catalog) -> Iterator[Problem]:
    for name, model in catalog.spec.models.items():
        if model.split is not None and model.canary is not None:
            yield catalog.source.problem(("models", name, "canary"), "give either canary or split")


def _cooldowns(catalog: Catalog) -> Iterator[Problem]:
    for loc, offer, provider in offers(catalog):
        if offer.cooldown is not None and offer.breaker.cooldown is not None:
            yield catalog.source.problem((*loc, "cooldown"), "give either cooldown or breaker.cooldown")
        rules = breaker_of(catalog, provider, offer)
        is_own = offer.cooldown is not None or bool(offer.breaker.model_fields_set)
        if rules.cooldown_s > rules.max_cooldown_s and is_own and offer.breaker.max_cooldown is not None:
            message = (
                f"cooldown ({rules.cooldown_s:g} s) is longer than max_cooldown ({rules.max_cooldown_s:g} s)"
            )
            yield catalog.source.problem((*loc, "breaker"), message)


Found = Iterator[tuple[Loc, str]]


def _shadow(name: str, model: ModelSpec, routes: Routes) -> Found:
    if model.shadow is not None and find_shadow(model.shadow.endpoint, routes[name], routes) is None:
        message = f"no endpoint of this model, and no endpoint's id, is '{model.shadow.endpoint}'"
        yield ("models", name, "shadow", "endpoint"), message + _known(routes[name])


def _arms(name: str, model: ModelSpec, routes: Routes) -> Found:
    route, split = routes[name], split_of(routes[name], model)
    if split is None:
        return
    loc: Loc = ("models", name, "canary", "endpoint") if model.canary else ("models", name, "split")
    named = split.arms[:1] if model.canary else split.arms
    taken: dict[str, str] = {}
    for arm in named:
        at = loc if model.canary else (*loc, arm.name)
        if not meant(arm.name, route.endpoints):
            yield at, f"no endpoint of this model is '{arm.name}'{_known(route)}"
        for member in sorted(arm.members):
            if taken.setdefault(member, arm.name) != arm.name:
                yield at, f"{member} is in '{taken[member]}' already; name endpoints by their ids"
    if model.canary and not split.arms[1].members and split.arms[0].members:
        yield loc, "leaves no other endpoint for the rest of the requests"


def _known(route: ModelRoute) -> str:
    ids = ", ".join(endpoint.id for endpoint in route.endpoints)
    return f"; it has {ids}" if ids else ""


_ON_FILES: tuple[Callable[[Catalog], Iterator[Problem]], ...] = (_sums, _one_split, _cooldowns)
_ON_MODELS: tuple[Callable[[str, ModelSpec, Routes], Found], ...] = (_shadow, _arms)
