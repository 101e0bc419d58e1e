"""The JSON Schema of a spec for editors: a wrong field is marked where it is.

Editors do not read OpenAPI's `discriminator`. To them a model with a wrong field fits none of all
models, and the whole model is marked. So each such union becomes a condition on `name`.
"""

from __future__ import annotations

from typing import Any

from eigensweep.search_spaces.spec import ExperimentSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_editor_schema() -> dict[str, Any]:
    """Return the schema of a spec file, of the models and tasks that are installed here.

    >>> schema = make_editor_schema()
    >>> schema["properties"]["task"]["properties"]["name"]["enum"][:2]
    ['adding', 'copying']
    """
    schema: dict[str, Any] = _replace_unions(ExperimentSpec.model_json_schema())
    return {"$schema": DIALECT, "title": "Eigensweep experiment", **schema}


def _replace_unions(node: Any) -> Any:
    if isinstance(node, list):
        return [_replace_unions(item) for item in node]
    if not isinstance(node, dict):
        return node
    replaced = {key: _replace_unions(value) for key, value in node.items()}
    if isinstance(node.get("discriminator"), dict) and "mapping" in node["discriminator"]:
        return _choose_by_name(replaced)
    return replaced


def _choose_by_name(union: dict[str, Any]) -> dict[str, Any]:
    members, field = union["discriminator"]["mapping"], union["discriminator"]["propertyName"]
    rest = {key: v for key, v in union.items() if key not in ("oneOf", "discriminator")}
    return {
        **rest,
        "type": "object",
        "required": [field],
        "properties": {field: {"enum": sorted(members)}},
        "allOf": [
            {
                "if": {"required": [field], "properties": {field: {"const": name}}},
                "then": {"$ref": reference},
            }
            for name, reference in sorted(members.items())
        ],
    }
