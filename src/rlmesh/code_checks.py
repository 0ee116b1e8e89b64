"""What can be said of code that a recipe names without importing it: the packages behind it may be heavy."""

from __future__ import annotations

import ast
import sys
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.machinery import ModuleSpec
from typing import Any

# A definition in the module's own source, or None for a name that is imported or assigned.
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None


def code_problems(
    key: str,
    name: str,
    known: Collection[str] = (),
    *,
    args: Mapping[str, Any] | None = None,
    places: int = 0,
    given: Sequence[str] = (),
) -> Iterator[str]:
    """What is wrong with `key: name`, one of `known` or an import path, and with the keyword arguments `args` beside it.

    rlmesh itself passes the first `places` arguments, and those `given` by name.
    """
    if name in known:
        return
    module, _, attribute = name.rpartition(".")
    if not module and known:
        hint = nearest_of(name, known) or "; one of your own is named by its import path"
        yield f"{key}: '{name}' is none of {', '.join(known)}{hint}"
    elif not module or not all(part.isidentifier() for part in name.split(".")):
        yield f"{key}: '{name}' is not an import path such as my_package.my_module.my_function"
    elif module == "__main__":
        yield f"{key}: '{name}' cannot be imported by the actors' own processes; move '{attribute}' into a module"
    elif (spec := find_module(module)) is None:
        yield f"{key}: cannot import '{name}': there is no module '{module}'"
    elif spec.origin and spec.origin.endswith(".py"):
        try:
            with tokenize.open(spec.origin) as source:
                body = ast.parse(source.read()).body
        except SyntaxError as error:
            yield f"{key}: cannot import '{name}': {spec.origin}, line {error.lineno}: {error.msg}"
            return
        if missing := _missing_import(body):
            package, line = missing
            yield f"{key}: cannot import '{name}': there is no module '{package}' ({spec.origin}, line {line})"
        names = _top_level(body)
        if names is None:
            return
        if attribute not in names:
            yield f"{key}: module '{module}' has no '{attribute}'{nearest_of(attribute, sorted(names))}"
        elif args is not None:
            yield from _argument_problems(key, name, names[attribute], args, places, given)


def find_module(name: str) -> ModuleSpec | None:
    """Where a module would be imported from. `importlib.util.find_spec` would import the packages above it."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    parent = name.rpartition(".")[0]
    path = None
    if parent:
        package = find_module(parent)
        if package is None or package.submodule_search_locations is None:
            return None
        path = package.submodule_search_locations
    found = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def nearest_of(name: str, known: Iterable[str]) -> str:
    """The words that end a message when one of the names is near."""
    nearest = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""


def _missing_import(body: list[ast.stmt]) -> tuple[str, int] | None:
    """The first package that is not there, of those that a module imports in any case, and the line that does."""
    for node in body:
        packages = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        packages += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        for package in packages:
            if find_module(top := package.partition(".")[0]) is None:
                return top, node.lineno
    return None


def _top_level(body: list[ast.stmt]) -> dict[str, Definition] | None:
    """Names that a module defines or imports; None where that can only be known by running it."""
    names: dict[str, Definition] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name == "__getattr__":
                return None
            names[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if any(alias.name == "*" for alias in node.names):
                return None
            names |= {(alias.asname or alias.name).split(".")[0]: None for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id: None for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif not isinstance(node, ast.Expr):
            return None
    return names


def _argument_problems(
    key: str, name: str, node: Definition, args: Mapping[str, Any], places: int, given: Sequence[str]
) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        bare = not (node.bases or node.keywords or node.decorator_list)  # what it inherits is not to be seen here
        inits = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        if not (bare and inits):
            return
        node, places = inits[0], places + 1
    if node is None or node.decorator_list:  # a decorator may change what it takes
        return
    takes, args_key = node.args, f"{key.rpartition('.')[0]}.args"
    first = [each.arg for each in [*takes.posonlyargs, *takes.args]]
    if len(first) < places and not takes.vararg:
        yield f"{key}: {name} takes no argument by its place, where it is given {places}"
        return
    named = {*first, *(each.arg for each in takes.kwonlyargs)}
    for arg in given:
        if arg not in named and not takes.kwarg:
            yield f"{key}: {name} is given an argument '{arg}', which it does not take"
    free = [arg for arg in [*first[places:], *(each.arg for each in takes.kwonlyargs)] if arg not in given]
    without_default = first[: len(first) - len(takes.defaults)]
    without_default += [
        a.arg for a, default in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if default is None
    ]
    for arg in args:
        if arg not in free and not takes.kwarg:
            hint = nearest_of(arg, free) or f"; it takes {', '.join(free) or 'none'}"
            yield f"{args_key}.{arg}: {name} has no such argument{hint}"
    for arg in free:
        if arg in without_default and arg not in args:
            yield f"{args_key}.{arg}: {name} needs this argument"
