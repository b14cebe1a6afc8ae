"""Suffixes of OpenRouter's kind: `model:nitro`. What each does is the router's business."""

from __future__ import annotations

from collections.abc import Mapping

# They mean something on any model. True: a rule for choosing endpoints, which no model may be named after;
# False: at OpenRouter also the name of separate models, so a file may list such a name.
VARIANTS: Mapping[str, bool] = {
    "nitro": True,
    "floor": True,
    "exacto": True,
    "online": True,
    "free": False,
    "thinking": False,
    "extended": False,
}
