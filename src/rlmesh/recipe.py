"""Recipes: load, extend, override, check and save the YAML that describes a run.

A recipe is strict: unknown keys, wrong types, values out of range and impossible combinations are refused before
anything starts, all of them at once, each with its path and the fix. Nothing heavy is imported here, so that a recipe is
checked on a machine without torch, vLLM or Monarch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Optional, Sequence, get_args, get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlmesh.actors.config import (
    PolicyServerConfig,
    ReferenceModelConfig,
    ReplayBufferConfig,
    RewardConfig,
    TrainerConfig,
)
from rlmesh.algorithms.config import AlgorithmConfig, EvalConfig, WarmStartConfig
from rlmesh.envs.config import EnvConfig
from rlmesh.errors import RecipeError
from rlmesh.mesh.config import PlacementConfig
from rlmesh.metrics.config import MetricsConfig
from rlmesh.models.config import ModelConfig
from rlmesh.rollout.config import RolloutConfig
from rlmesh.schema import option
from rlmesh.weights.config import WeightsConfig


@dataclass
class RunConfig:
    """The run as a whole."""

    name: str = option("run", "name of the run")
    seed: int = option(0, "every random number of the run follows from it", ge=0)
    steps: int = option(150, "training steps", ge=1)
    dir: str = option("runs/${run.name}", "run directory, relative to the working directory")


@dataclass
class CheckpointConfig:
    """Saving the run."""

    every: int = option(50, "steps between checkpoints (0: none); the last step is always saved", ge=0)
    keep: int = option(2, "checkpoints that are kept, the newest ones", ge=1)


@dataclass
class Recipe:
    """Everything that describes a run; each part is the configuration of the component that it names.

    >>> recipe = load_recipe("configs/blackjack.yaml", ["run.steps=10"])     # doctest: +SKIP
    >>> recipe = Recipe(run=RunConfig(name="mine", steps=10))                  # or without YAML
    >>> check_recipe(recipe)
    """

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    warm_start: Optional[WarmStartConfig] = None
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    policy: PolicyServerConfig = field(default_factory=PolicyServerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    ref_model: ReferenceModelConfig = field(default_factory=ReferenceModelConfig)
    replay_buffer: ReplayBufferConfig = field(default_factory=ReplayBufferConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe with what it extends, apply `key=value` overrides, and check it.

    Raises: RecipeError that lists everything that is wrong with it.
    """
    node = OmegaConf.merge(*[OmegaConf.create(content) for content in _with_extended(Path(path), [])])
    for override in overrides:
        key, separator, _ = override.partition("=")
        if not separator or not key:
            raise RecipeError(f"'{override}': an override is key=value, for example run.steps=10")
        try:
            node = OmegaConf.merge(node, OmegaConf.from_dotlist([override]))
        except (OmegaConfBaseException, yaml.YAMLError) as error:
            raise RecipeError(f"{key}: cannot read the override '{override}': {_first_line(error)}") from error
    unknown = _unknown_keys(OmegaConf.to_container(node), Recipe, "")
    if unknown:
        raise RecipeError("\n".join(unknown))
    recipe = _typed(node)
    check_recipe(recipe)
    return recipe


def check_recipe(recipe: Recipe) -> None:
    """Check a recipe, also one built in Python. Raises: RecipeError that lists everything that is wrong."""
    from rlmesh.recipe_checks import recipe_problems  # it reads the classes above

    found = recipe_problems(recipe)
    if found:
        raise RecipeError("\n".join(found))


def recipe_yaml(recipe: Recipe) -> str:
    """The recipe with every option, as YAML that loads and runs again as it is."""
    return OmegaConf.to_yaml(OmegaConf.structured(recipe), resolve=True)


def _with_extended(path: Path, chain: list[Path]) -> list[dict[str, Any]]:
    """The contents of the recipe and of all it extends, the most general first."""
    if not path.is_file():
        raise RecipeError(f"{path}: there is no such recipe")
    if path.resolve() in chain:
        raise RecipeError(f"extends: {path} extends itself ({' -> '.join(p.name for p in [*chain, path])})")
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OSError) as error:
        raise RecipeError(f"{path}: not valid YAML: {_yaml_problem(error)}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys, not a {type(content).__name__}")
    general = content.pop("extends", None)
    unknown = _unknown_keys(content, Recipe, "")
    if unknown:
        raise RecipeError("\n".join(f"{path}: {problem}" for problem in unknown))
    if general is None:
        return [content]
    return [*_with_extended(path.parent / str(general), [*chain, path.resolve()]), content]


def _unknown_keys(content: Any, schema: type, path: str) -> list[str]:
    """A sentence for every key that the schema does not have, with the nearest that it has."""
    if not isinstance(content, dict):
        return []
    hints, known, found = get_type_hints(schema), [f.name for f in fields(schema)], []
    for key, value in content.items():
        if key not in known:
            nearest = get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"did you mean '{path}{nearest[0]}'?" if nearest else f"known: {', '.join(known)}"
            found.append(f"{path}{key}: unknown key; {hint}")
            continue
        inner = next((t for t in (hints[key], *get_args(hints[key])) if is_dataclass(t)), None)
        if inner is None:
            continue
        if is_dataclass(hints[key]) or type(None) in get_args(hints[key]):
            found += _unknown_keys(value, inner, f"{path}{key}.")
        elif isinstance(value, dict):  # a mapping of names to configurations
            for name, part in value.items():
                found += _unknown_keys(part, inner, f"{path}{key}.{name}.")
    return found


def _typed(node: Any) -> Recipe:
    """Plain typed dataclasses. Raises: RecipeError for values of the wrong type."""
    schema = OmegaConf.structured(Recipe)
    if OmegaConf.select(node, "placement.hosts"):
        schema.placement.hosts = {}  # the recipe's own hosts take the place of the default ones
    try:
        merged = OmegaConf.merge(schema, node)
        OmegaConf.resolve(merged)
        return OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        path = f"{error.full_key}: " if getattr(error, "full_key", None) else ""
        raise RecipeError(f"{path}{_first_line(error)}") from error


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {error.problem}" if mark else _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
