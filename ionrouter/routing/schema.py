"""The JSON Schema of routes.yaml, made from the models in spec.py, for editors.

`python -m ionrouter.routing.schema` writes it to routes.schema.json beside this file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ionrouter.routing.spec import CatalogSpec
from ionrouter.routing.validation import SHARED_PREFIX

SCHEMA_PATH = Path(__file__).with_name("routes.schema.json")


def schema() -> dict[str, Any]:
    """The schema as plain data (draft 2020-12)."""
    made = CatalogSpec.model_json_schema(by_alias=True)
    shared = {f"^{SHARED_PREFIX}": {"description": "Anything; a place for anchors that other sections use."}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "patternProperties": shared,
    }


def render() -> str:
    """The schema as the text of its file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(render(), encoding="utf-8")
    print(SCHEMA_PATH)
