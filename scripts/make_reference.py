"""Write docs/reference/recipe.md from the Config classes: `python scripts/make_reference.py [--check]`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rlmesh.recipe import Recipe

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "recipe.md"
_HEAD = """# Every key of a recipe

Made from the code by `scripts/make_reference.py`; do not edit. A key marked *schedule* is a number or
`{from: a, to: b}`, with `over` (steps, or a share of the run such as 0.5; default: the whole run), `after` (steps before it begins) and
`shape` (`linear`, `cosine`, `exponential`).

Set a key on the command line with `key=value`, for example `rollout.group_size=16`. `extends: other.yaml` at the top of a
recipe takes over everything from another one, but for the `args` of code in whose place it names other code.
"""
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def sections(schema: type, path: str) -> Iterator[str]:
    hints, rows, inner = get_type_hints(schema), [], []
    for field in dataclasses.fields(schema):
        kind = next((t for t in (hints[field.name], *get_args(hints[field.name])) if dataclasses.is_dataclass(t)), None)
        if kind:
            name = f"{path}{field.name}" + (".<name>" if getattr(hints[field.name], "__origin__", None) is dict else "")
            inner.append((kind, f"{name}."))
        else:
            rows.append(row(field, hints[field.name], path))
    if path:
        yield f"## `{path.rstrip('.')}`\n\n{(schema.__doc__ or '').strip().splitlines()[0]}\n"
    if rows:
        yield "| key | default | type and range | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    if len(inner) > 1 and len({kind for kind, _ in inner}) == 1:  # the same options for each of several actors
        names = ", ".join(f"`{name.rstrip('.').rpartition('.')[2]}`" for _, name in inner)
        yield f"`<actor>` is one of {names}.\n"
        inner = [(inner[0][0], f"{path}<actor>.")]
    for kind, name in inner:
        yield from sections(kind, name)


def row(field: dataclasses.Field, hint: Any, path: str) -> str:
    default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    metadata = field.metadata
    kind = "number, *schedule*" if metadata["schedule"] else getattr(hint, "__name__", str(hint)).replace("typing.", "")
    if not metadata["schedule"] and get_args(hint):
        kind = str(hint).replace("typing.", "")
    limits = ", ".join(f"{_SIGNS[name]} {value:g}" for name, value in metadata["limits"].items())
    choices = ", ".join(f"`{choice}`" for choice in metadata["choices"] or ())
    allowed = "; ".join(part for part in (choices or kind, limits) if part)
    shown = repr(default).replace("'", "") if default != "" else "empty"
    return f"| `{path}{field.name}` | `{shown}` | {allowed} | {metadata['doc']} |".replace("\n", " ")


def page() -> str:
    return _HEAD + "\n" + "\n".join(sections(Recipe, ""))


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page() and f"{PAGE} is not what the code says: run scripts/make_reference.py")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())
