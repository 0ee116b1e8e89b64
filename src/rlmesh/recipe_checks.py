"""What can be wrong with a recipe whose keys and types are right: ranges, choices, import paths, combinations."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rlmesh import schedule
from rlmesh.errors import RecipeError
from rlmesh.evals import EVALUATORS
from rlmesh.losses import LOSSES
from rlmesh.mesh.plan import plan_placement
from rlmesh.recipe import Recipe

_OPERATORS = {"ge": ("at least", lambda v, x: v >= x), "gt": ("above", lambda v, x: v > x)}
_OPERATORS |= {"le": ("at most", lambda v, x: v <= x), "lt": ("below", lambda v, x: v < x)}


def needed_actors(recipe: Recipe) -> list[str]:
    """The actors that the recipe starts, by their names in `placement.actors`."""
    actors = ["policy", "trainer", "replay_buffer", "reward", "rollout"]
    if recipe.algorithm.kl_coef != 0:
        actors.append("ref_model")
    if not recipe.env.url:
        actors.append("env")
    return actors


def recipe_problems(recipe: Recipe) -> list[str]:
    """Everything that is wrong with the recipe, one sentence each, beginning with the path of the key."""
    found = list(_option_problems(recipe, "", recipe.run.steps))
    if found:
        return found  # what follows relies on numbers that are in range
    found += _import_problems(recipe)
    found += _combination_problems(recipe)
    return found


def _option_problems(config: Any, path: str, total_steps: int) -> Iterator[str]:
    for f in fields(config):
        value, where = getattr(config, f.name), f"{path}{f.name}"
        if is_dataclass(value):
            yield from _option_problems(value, f"{where}.", total_steps)
        elif isinstance(value, dict) and all(is_dataclass(part) for part in value.values()):
            for name, part in value.items():
                yield from _option_problems(part, f"{where}.{name}.", total_steps)
        elif f.metadata:
            yield from _value_problems(value, where, f.metadata, total_steps)


def _value_problems(value: Any, where: str, metadata: Any, total_steps: int) -> Iterator[str]:
    if metadata["schedule"]:
        if isinstance(value, dict):
            unknown = [key for key in value if key not in schedule.KEYS]
            for key in unknown:
                nearest = get_close_matches(key, schedule.KEYS, n=1, cutoff=0.0)
                yield f"{where}.{key}: unknown key of a schedule; did you mean '{nearest[0]}'?"
            wrong = schedule.problems({k: v for k, v in value.items() if k not in unknown}, total_steps)
            yield from (f"{where}: {problem}" for problem in wrong)
            if unknown or wrong:
                return
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            yield f"{where}: {value!r} is neither a number nor a schedule ({{from: ..., to: ...}})"
            return
    if metadata["choices"] is not None and value not in metadata["choices"]:
        nearest = get_close_matches(str(value), [str(c) for c in metadata["choices"]], n=1, cutoff=0.5)
        hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
        yield f"{where}: {value!r} is not one of {', '.join(str(c) for c in metadata['choices'])}{hint}"
    numbers = value if isinstance(value, list) else schedule.ends(value) if metadata["schedule"] else [value]
    for name, limit in metadata["limits"].items():
        words, holds = _OPERATORS[name]
        if any(not holds(number, limit) for number in numbers):
            yield f"{where}: {numbers if isinstance(value, dict) else value} must be {words} {limit:g}"


def _import_problems(recipe: Recipe) -> list[str]:
    """Import paths are looked up without importing them: the packages behind them may be heavy."""
    named = [
        ("algorithm.loss", recipe.algorithm.loss, list(LOSSES)),
        ("algorithm.advantage", recipe.algorithm.advantage, ["group_mean", "group_norm"]),
        ("eval.name", recipe.eval.name, list(EVALUATORS)),
        ("reward.function", recipe.reward.function, []),
    ]
    if recipe.warm_start:
        named.append(("warm_start.data", recipe.warm_start.data, []))
    return [problem for key, name, known in named if name and (problem := _import_problem(key, name, known))]


def _import_problem(key: str, name: str, known: list[str]) -> str | None:
    if name in known:
        return None
    module, _, attribute = name.rpartition(".")
    if not module:
        nearest = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = (
            f"did you mean '{nearest[0]}'?" if nearest else "an import path looks like my_package.my_module.my_function"
        )
        return f"{key}: '{name}' is none of {', '.join(known)}; {hint}" if known else f"{key}: '{name}': {hint}"
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        return f"{key}: cannot import '{name}': there is no module '{error.name}'"
    if spec is None:
        return f"{key}: cannot import '{name}': there is no module '{module}'"
    if spec.origin and spec.origin.endswith(".py"):
        names = _top_level_names(Path(spec.origin).read_text())
        if names is not None and attribute not in names:
            nearest = get_close_matches(attribute, sorted(names), n=1, cutoff=0.5)
            return f"{key}: module '{module}' has no '{attribute}'" + (
                f"; did you mean '{module}.{nearest[0]}'?" if nearest else ""
            )
    return None


def _top_level_names(source: str) -> set[str] | None:
    """Names that a module defines or imports; None where that can only be known by running it."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name == "__getattr__":
                return None
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if any(alias.name == "*" for alias in node.names):
                return None
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
        elif not isinstance(node, ast.Expr):
            return None
    return names


def _combination_problems(recipe: Recipe) -> Iterator[str]:
    rollout, tiny, placed = recipe.rollout, recipe.model.tiny, recipe.placement.actors
    if rollout.group_size == 1 and recipe.algorithm.advantage in ("group_mean", "group_norm"):
        yield (
            f"rollout.group_size: a group of 1 has no one to be compared with, and algorithm.advantage "
            f"'{recipe.algorithm.advantage}' is always 0; use at least 2"
        )
    if rollout.max_tokens >= recipe.model.max_length:
        yield (
            f"rollout.max_tokens: {rollout.max_tokens} leaves no room for a prompt in model.max_length = {recipe.model.max_length}"
        )
    if recipe.trainer.pack_length < recipe.model.max_length:
        yield (
            f"trainer.pack_length: a row of {recipe.trainer.pack_length} tokens cannot hold a sample of model.max_length = "
            f"{recipe.model.max_length}; raise it, or lower model.max_length"
        )
    if len(recipe.trainer.optimizer.betas) != 2:
        yield f"trainer.optimizer.betas: two numbers are needed, not {len(recipe.trainer.optimizer.betas)}"
    if recipe.model.source == "tiny-qwen3" and tiny.num_heads % tiny.num_kv_heads:
        yield f"model.tiny.num_kv_heads: {tiny.num_kv_heads} does not divide model.tiny.num_heads = {tiny.num_heads}"
    if recipe.algorithm.minibatches > rollout.groups_per_step:
        yield (
            f"algorithm.minibatches: {recipe.algorithm.minibatches} parts cannot be made of rollout.groups_per_step = "
            f"{rollout.groups_per_step} groups"
        )
    if recipe.eval.name == "blackjack" and rollout.history != "none":
        yield (
            "rollout.history: eval.name 'blackjack' reads one probability for each state, so that a prompt may hold nothing "
            "but the state: use history: none, or another evaluation"
        )
    world_size = recipe.trainer.parallelism.world_size
    if placed.trainer.procs != world_size:
        yield (
            f"placement.actors.trainer.procs: trainer.parallelism asks for {world_size} ranks, and there are "
            f"{placed.trainer.procs} procs; set it to {world_size}"
        )
    for actor in ("trainer", "replay_buffer", "ref_model"):
        if getattr(placed, actor).replicas != 1:
            yield f"placement.actors.{actor}.replicas: there is one {actor}; use placement.actors.{actor}.procs for more ranks"
    for actor in ("policy", "ref_model", "replay_buffer", "reward", "rollout", "env"):
        if getattr(placed, actor).procs != 1:
            yield f"placement.actors.{actor}.procs: a {actor} is one process; use placement.actors.{actor}.replicas for more"
    if not recipe.env.url and not recipe.env.app:
        yield "env.app: an application to start or env.url of a running server is needed"
    try:
        plan_placement(recipe.placement, needed_actors(recipe))
    except RecipeError as error:
        yield str(error)
