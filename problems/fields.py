"""Read untrusted JSON field by field."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from problems.errors import WireError

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_DIMS = 8
MAX_EXTENT = 1 << 40
MAX_TEXT = 20_000
MAX_COST = 1e30

Value = TypeVar("Value")


class Fields:
    """Typed access to the fields of an untrusted JSON object.

    Every method raises WireError, which names the field, if it is absent or out of form.
    """

    def __init__(self, data: object, where: str = "description") -> None:
        self.where = where
        if not isinstance(data, dict):
            raise WireError(f"{where} must be an object, got {type(data).__name__}.")
        self.data: dict[str, Any] = data

    def error(self, key: str, what: str) -> WireError:
        return WireError(f"{self.where}: {key} {what}.")

    def value(self, key: str, kind: type) -> Any:
        value = self.data.get(key)
        if type(value) is not kind:
            raise self.error(key, f"must be {kind.__name__}, got {type(value).__name__}")
        return value

    def text(self, key: str, limit: int) -> str:
        text: str = self.value(key, str)
        if not 0 < len(text) <= limit or any(ord(c) < 32 and c not in "\n\t" for c in text):
            raise self.error(key, f"must be 1 to {limit} printable characters")
        return text

    def long_text(self, key: str) -> str:
        return self.text(key, MAX_TEXT)

    def name(self, key: str) -> str:
        return self._named(key, self.value(key, str))

    def names(self, key: str) -> tuple[str, ...]:
        return tuple(self._named(key, item) for item in self.items(key, 64))

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        value: str = self.value(key, str)
        if value not in choices:
            raise self.error(key, f"must be one of {', '.join(choices)}")
        return value

    def integer(self, key: str, low: int = 0, high: int = MAX_EXTENT) -> int:
        value: int = self.value(key, int)
        if not low <= value <= high:
            raise self.error(key, f"must be from {low} to {high}")
        return value

    def optional(self, key: str, read: Callable[[str], Value]) -> Value | None:
        """What `read` makes of the field, None if it is null or absent."""
        return None if self.data.get(key) is None else read(key)

    def table(self, key: str) -> "Fields":
        """An object within."""
        return Fields(self.value(key, dict), f"{self.where}.{key}")

    def integers(self, key: str, limit: int) -> dict[str, int]:
        table = self.table(key)
        if len(table.data) > MAX_DIMS:
            raise self.error(key, f"has more than {MAX_DIMS} entries")
        return {str(name)[:40]: table.integer(name, high=limit) for name in table.data}

    def sizes(self, key: str) -> tuple[int, ...]:
        sizes = self.items(key, MAX_DIMS)
        if any(type(size) is not int or not 0 <= size <= MAX_EXTENT for size in sizes):
            raise self.error(key, f"must be integers from 0 to {MAX_EXTENT}")
        return tuple(sizes)

    def items(self, key: str, limit: int) -> list[Any]:
        items: list[Any] = self.value(key, list)
        if len(items) > limit:
            raise self.error(key, f"has more than {limit} items")
        return items

    def cost(self, key: str) -> float:
        value: Any = self.data.get(key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= MAX_COST:
            raise self.error(key, f"must be a number from 0 to {MAX_COST:g}")
        return float(value)

    def _named(self, key: str, item: object) -> str:
        if not isinstance(item, str) or not NAME.fullmatch(item):
            raise self.error(key, "must be lower-case identifiers of at most 40 characters")
        return item
