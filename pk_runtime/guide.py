"""The programming guide as text: what people read in docs/ and models get as context."""

from pathlib import Path

_PLACES = (
    Path(__file__).parent / "pk_guide.md",  # an installed wheel
    Path(__file__).parent.parent / "docs" / "pk_guide.md",  # a checkout
)


def text() -> str:
    """The guide (docs/pk_guide.md). FileNotFoundError when the installation lacks it."""
    for place in _PLACES:
        if place.is_file():
            return place.read_text(encoding="utf-8")
    raise FileNotFoundError(
        f"the programming guide is missing: looked for {_PLACES[0]} and {_PLACES[1]}"
    )
