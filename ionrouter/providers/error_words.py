"""What the words of an error message mean, for upstreams that say nothing better. One table, in order."""

from __future__ import annotations

import re

from ionrouter.providers.error_tables import (
    BAD_KEY,
    CONTEXT_LENGTH,
    MODERATED,
    NO_MONEY,
    UNKNOWN_MODEL,
    UNSUPPORTED,
    Verdict,
)


def _words(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.I | re.S)


_REFUSALS = frozenset({400, 404, 413, 422, 500})
# (statuses at which the words count, words, meaning); the first match wins.
BY_WORDS: tuple[tuple[frozenset[int], re.Pattern[str], Verdict], ...] = (
    (
        _REFUSALS,
        _words(
            r"context (?:length|window|size)",
            r"maximum (?:context|prompt|sequence) length",
            r"max(?:imum)?[_ ]model[_ ]len",
            r"(?:prompt|input) (?:is |was )?too (?:long|large)",
            r"too many (?:input )?tokens",
            r"(?:prompt|inputs?)`? tokens?\b.{0,80}\b(?:exceed|longer|larger|more than|must be <=)",
            r"reduce the length of the",
            r"exceeds? the (?:available|maximum|model'?s?) (?:context|number of tokens)",
            r"longer than the model'?s",
            r"(?:input|prompt|tokens).{0,40}exceeds? the (?:max|limit)",
            r"token count.{0,60}exceeds?",
        ),
        CONTEXT_LENGTH,
    ),
    (
        frozenset({400, 403, 422}),
        _words(
            r"content (?:policy|management policy|filter)",
            r"flagged (?:by|as|for)",
            r"\bmoderation\b",
            r"safety (?:system|filter|policy)",
            r"violat\w+ .{0,40}(?:usage|content|safety) polic",
            r"responsible ai",
            r"inappropriate content",
        ),
        MODERATED,
    ),
    (
        frozenset({400, 401, 403}),
        _words(
            r"(?:incorrect|invalid|missing|expired|no) api[- ]?key",
            r"api[- ]?key (?:not valid|is invalid|not found|you provided)",
            r"didn'?t provide an api key",
            r"invalid (?:access )?token\b",
            r"\bunauthori[sz]ed\b",
        ),
        BAD_KEY,
    ),
    (
        frozenset({400, 403, 412}),
        _words(
            r"insufficient (?:balance|credits?|funds)",
            r"account .{0,30}(?:suspended|deactivated|disabled|overdue)",
            r"credit balance is too low",
            r"out of credits",
            r"billing (?:is )?(?:not active|disabled)",
        ),
        NO_MONEY,
    ),
    (
        _REFUSALS,
        _words(
            r"(?:not|isn'?t) a valid model",
            r"\b(?:invalid|unknown) model\b",
            r"no such model",
            r"failed to load model",
            r"unable to access (?:non-serverless )?model",
            r"model\b[^\n]{0,120}?(?:does not|doesn'?t) exist",
            r"model\b[^\n]{0,120}?not (?:found|available|deployed)",
            r"model\b[^\n]{0,120}?(?:decommissioned|no longer (?:available|supported))",
            r"model\b[^\n]{0,120}?has been (?:deprecated|removed|retired)",
        ),
        UNKNOWN_MODEL,
    ),
    (
        frozenset({400, 422, 500, 501}),
        _words(
            r"(?:does|do) not (?:currently )?support|doesn'?t support",
            r"unsupported (?:parameter|value|field|argument|feature)",
            r"(?:is|are) not (?:currently )?supported",
            r"not supported (?:by|for|with) (?:this|the) model",
            r"unrecogni[sz]ed (?:request )?(?:argument|parameter|field)",
            r"unknown (?:parameter|field|argument|name \")",
            r"extra (?:inputs|fields) (?:are )?not permitted|extra_forbidden",
            r"unexpected keyword argument",
            r"additional properties are not allowed",
            r"requires --enable",
            r"chat template|template error|\bjinja",
            r"roles must alternate",
        ),
        UNSUPPORTED,
    ),
)
