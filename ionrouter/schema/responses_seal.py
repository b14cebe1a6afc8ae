"""What a thought needs on the next turn, in the one field of a reasoning item that every client sends back.

Clients that keep nothing on a server (Codex, say) ask for `encrypted_content` and return it as it came; what
OpenAI's items do not have, a signature and whose format it is, they drop. So these travel inside of it: a
prefix with a version, and the chat side's reasoning details as JSON in base64. It hides nothing, and says
nothing that the answer did not. A value without the prefix is its upstream's own.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ionrouter.schema import json
from ionrouter.schema.reasoning_details import ENCRYPTED, SUMMARY, TEXT, UNKNOWN

OPENAI = "openai-responses-v1"  # a format
_PREFIX, _VERSION = "ionrouter.", "1."
_FIELDS = frozenset({"type", "text", "summary", "data", "signature", "format", "id"})  # all of them texts
_OUR_ITEM = re.compile(r"rs_\d+-[A-Za-z0-9]{20}-\d+")

Details = list[dict[str, Any]]


def details_of_item(
    item: Mapping[str, Any], summaries: Sequence[str], texts: Sequence[str], its_id: str | None
) -> Details:
    """The reasoning details that an item shows, `its_id` being what their maker called them."""
    sealed = item.get("encrypted_content")
    format_ = item.get("format") or (OPENAI if sealed else UNKNOWN)
    common = {"id": its_id, "format": format_}
    details: Details = [{"type": SUMMARY, "summary": text, **common} for text in summaries]
    details += [{"type": TEXT, "text": text, **common} for text in texts]
    if signature := item.get("signature"):
        if not details:
            details.append({"type": TEXT, "text": "", **common})  # a thought that is not shown
        details[-1]["signature"] = signature
    if sealed:
        details.append({"type": ENCRYPTED, "data": sealed, **common})
    return details


def makers_id(item_id: Any) -> str | None:
    """Who made a thought may check what it is called: the name that an item got here is none of theirs."""
    return None if not isinstance(item_id, str) or _OUR_ITEM.fullmatch(item_id) else item_id


def seal(details: Details) -> str:
    """Put details into one text."""
    return _PREFIX + _VERSION + base64.b64encode(json.dumps(details)).decode("ascii")


def unseal(value: str) -> Details | None:
    """Take them out again; None for a value that is not ours. Raises ValueError where ours is not whole."""
    if not value.startswith(_PREFIX):
        return None
    version, dot, data = value.removeprefix(_PREFIX).partition(".")
    if version + dot != _VERSION:
        raise ValueError("encrypted_content is of another version of ionrouter; leave the item out")
    try:
        details = json.loads(base64.b64decode(data, validate=True))
    except (ValueError, binascii.Error, RecursionError):
        details = None
    if not isinstance(details, list) or not all(map(_is_detail, details)):
        raise ValueError("encrypted_content was changed; send it as it came, or leave the item out")
    return details


def _is_detail(detail: Any) -> bool:
    if not isinstance(detail, dict) or detail.get("type") not in (TEXT, SUMMARY, ENCRYPTED):
        return False
    return detail.keys() <= _FIELDS and all(isinstance(value, str | None) for value in detail.values())
