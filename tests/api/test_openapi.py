"""The schema: every operation named and described, every field described, errors as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import Api

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"


@pytest.fixture
def schema(api: Api) -> dict[str, Any]:
    document: dict[str, Any] = api.get("/v1/openapi.json").json()
    return document


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_every_operation_has_an_id_and_a_description(schema: dict[str, Any]) -> None:
    ids = []
    for method, path, operation in operations(schema):
        assert operation.get("description"), f"{method} {path}"
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", operation["operationId"]), operation["operationId"]
        ids.append(operation["operationId"])
    assert len(ids) == len(set(ids))


def test_every_field_and_parameter_is_described(schema: dict[str, Any]) -> None:
    missing = []
    for name, definition in schema["components"]["schemas"].items():
        if not definition.get("description"):
            missing.append(name)
        for field, content in definition.get("properties", {}).items():
            if not content.get("description"):
                missing.append(f"{name}.{field}")
    for method, path, operation in operations(schema):
        for parameter in operation.get("parameters", ()):
            if not parameter.get("description"):
                missing.append(f"{method} {path}: {parameter['name']}")
    assert not missing, f"without a description: {missing}"


def test_errors_are_problem_documents_in_the_schema(schema: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in schema["components"]["schemas"]
    for method, path, operation in operations(schema):
        content = operation["responses"]["default"]["content"]
        assert list(content) == ["application/problem+json"], f"{method} {path}"
        assert content["application/problem+json"]["schema"] == {
            "$ref": "#/components/schemas/ProblemDocument"
        }
        assert "422" not in operation["responses"], f"{method} {path}"


def test_the_document_lists_every_operation(schema: dict[str, Any]) -> None:
    text = DOCUMENT.read_text()
    listed = set(re.findall(r"^\| `([A-Z]+) (\S+)` \| `(\w+)` \|", text, re.MULTILINE))
    real = {(method, path, op["operationId"]) for method, path, op in operations(schema)}
    assert listed == real
