"""Recipes: load, extend, override, check and save the YAML that describes a run.

A recipe is strict: unknown keys, wrong types, values out of range and impossible combinations are refused before
anything starts, all of them at once, each with its path and the fix. Nothing heavy is imported here, so that a recipe is
checked on a machine without torch, vLLM or Monarch.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Optional, Sequence, get_args, get_origin, get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlmesh.actors.config import (
    PolicyServerConfig,
    ReferenceModelConfig,
    ReplayBufferConfig,
    RewardConfig,
)
from rlmesh.algorithms.config import AlgorithmConfig, EvalConfig, WarmStartConfig
from rlmesh.envs.config import EnvConfig
from rlmesh.errors import RecipeError
from rlmesh.mesh.config import PlacementConfig
from rlmesh.metrics.config import MetricsConfig
from rlmesh.models.config import ModelConfig, TrainerConfig
from rlmesh.rollout.config import RolloutConfig
from rlmesh.schema import LONGEST_S, option
from rlmesh.weights.config import WeightsConfig


@dataclass
class RunConfig:
    """The run as a whole."""

    name: str = option("run", "name of the run")
    seed: int = option(0, "every random number of the run follows from it", ge=0, lt=2**63)
    steps: int = option(150, "training steps", ge=1)
    dir: str = option("runs/${run.name}", "run directory, relative to the working directory")
    max_restarts: int = option(
        3,
        "how often, without a new checkpoint between, an actor that died is replaced, or the run goes back to its newest checkpoint",
        ge=0,
    )
    warn_after_s: float = option(
        300.0, "a part of a step that takes longer is named, with what waits for whom, in seconds", gt=0, le=LONGEST_S
    )


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
    >>> check_recipe(recipe).run.dir
    'runs/mine'
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
    problems: list[str] = []
    merged: dict[str, Any] = {}
    for file, content in _with_extended(Path(path), []):
        problems += [f"{problem} (in {file})" for problem in _shape_problems(content, Recipe, "")]
        merged = _merge(merged, content)
    # `args` come after the names of the code that they are for, wherever they stand in the command
    for override in sorted(overrides, key=lambda override: ".args" in override.partition("=")[0]):
        content = _parse_override(override)
        problems += _shape_problems(content, Recipe, "")
        merged = _merge(merged, content)
    return _checked(merged, problems)


def check_recipe(recipe: Recipe) -> Recipe:
    """Check a recipe, also one built in Python; returns it with its references (`${run.name}`) filled in.

    Raises: RecipeError that lists everything that is wrong.
    """
    content = asdict(recipe)
    return _checked(content, _shape_problems(content, Recipe, ""))


def recipe_yaml(recipe: Recipe) -> str:
    """The recipe with every option, as YAML that loads and runs again as it is."""
    return OmegaConf.to_yaml(OmegaConf.structured(recipe), resolve=True)


def _checked(content: dict[str, Any], problems: list[str]) -> Recipe:
    from rlmesh.recipe_checks import recipe_problems  # it reads the classes above

    if not problems:
        recipe = _typed(content)
        problems = recipe_problems(recipe)
    if problems:
        raise RecipeError("\n".join(problems))
    return recipe


def _with_extended(path: Path, chain: list[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """The contents of the recipe and of all it extends, the most general first."""
    if not path.is_file():
        raise RecipeError(f"{path}: there is no such recipe")
    if path.resolve() in chain:
        raise RecipeError(f"extends: {path} extends itself ({' -> '.join(p.name for p in [*chain, path])})")
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OSError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise RecipeError(f"{path}: not valid YAML: {_yaml_problem(error)}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys, not a {type(content).__name__}")
    if "extends" not in content:
        return [(path, content)]
    general = content.pop("extends")
    if not isinstance(general, str):
        raise RecipeError(f"extends: the file name of one recipe is needed, not {general!r} (in {path})")
    return [*_with_extended(path.parent / general, [*chain, path.resolve()]), (path, content)]


def _parse_override(override: str) -> dict[str, Any]:
    try:
        override.encode()
    except UnicodeEncodeError:  # bytes of the command line that are no UTF-8
        raise RecipeError(f"{override!r}: an override is text in UTF-8") from None
    key, separator, _ = override.partition("=")
    if not separator or not all(key.split(".")):
        raise RecipeError(f"'{override}': an override is key=value, for example run.steps=10")
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([override]))
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise RecipeError(f"{key}: cannot read the override '{override}': {_yaml_problem(error)}") from error


_NAMES_CODE = ("app", "data", "function", "name")
_OF_THE_CODE = ("args", "group_seed")  # keys beside one of those that mean something to that code alone


def _merge(general: Any, special: Any) -> Any:
    """Mappings are merged key by key; anything else of the more special one takes the place of the general one.

    What was written for the code that the general one names is dropped where the special one names other code.
    """
    if not (isinstance(general, dict) and isinstance(special, dict)):
        return special
    if any(name in special and special[name] != general.get(name) for name in _NAMES_CODE):
        general = {key: value for key, value in general.items() if key not in _OF_THE_CODE}
    return general | {key: _merge(general.get(key), value) for key, value in special.items()}


_ENVIRONMENT = re.compile(r"\$\{\s*(oc\.(env|\$)|\$)")  # OmegaConf's way to a variable, which may be a secret


def _shape_problems(value: Any, hint: Any, path: str) -> list[str]:
    """A sentence for every key that the schema does not have and for every value of the wrong type."""
    where, arguments = path.removesuffix("."), get_args(hint)
    if value == "???":  # OmegaConf's word for what is still to be filled in
        return [f"{where}: a value is needed in place of '???'"]
    if isinstance(value, str) and "${" in value:  # a reference: its type shows when it is filled in
        if _ENVIRONMENT.search(value):
            return [f"{where}: a recipe is saved with what it holds and takes nothing from the environment ('{value}')"]
        return []
    if type(None) in arguments:
        return [] if value is None else _shape_problems(value, arguments[0], path)
    if is_dataclass(hint):
        if not isinstance(value, dict):
            return [f"{where}: keys are needed ({', '.join(f.name for f in fields(hint))}), not {value!r}"]
        return _key_problems(value, hint, path)
    if get_origin(hint) is dict or (hint is Any and isinstance(value, dict)):
        if not isinstance(value, dict):
            return [f"{where}: a mapping is needed, not {value!r}"]
        part_hint = arguments[1] if arguments else Any
        return [p for name, part in value.items() for p in _shape_problems(part, part_hint, f"{path}{name}.")]
    if get_origin(hint) is list or (hint is Any and isinstance(value, list)):
        if not isinstance(value, (list, tuple)):
            return [f"{where}: a list is needed, not {value!r}"]
        part_hint = arguments[0] if arguments else Any
        return [p for i, part in enumerate(value) for p in _shape_problems(part, part_hint, f"{where}[{i}].")]
    if hint is Any or (isinstance(value, _PLAIN[hint][1]) and (hint is bool or not isinstance(value, bool))):
        return []
    return [f"{where}: {_PLAIN[hint][0]} is needed, not {value!r}"]


_PLAIN = {  # 10. in YAML is the number 10.0, so that text which looks like a fraction has to be quoted
    bool: ("true or false", bool),
    int: ("a whole number", int),
    float: ("a number", (int, float)),
    str: ("text (in quotes)", (str, int)),
}


def _key_problems(content: dict[str, Any], schema: type, path: str) -> list[str]:
    hints, known, found = get_type_hints(schema), [f.name for f in fields(schema)], []
    for key, value in content.items():
        if key in known:
            found += _shape_problems(value, hints[key], f"{path}{key}.")
            continue
        nearest = get_close_matches(str(key), known, n=1, cutoff=0.5)
        hint = f"did you mean '{path}{nearest[0]}'?" if nearest else f"known: {', '.join(known)}"
        found.append(f"{path}{key}: unknown key; {hint}")
    return found


def _typed(content: dict[str, Any]) -> Recipe:
    """Plain typed dataclasses with references filled in. Raises: RecipeError for references that lead nowhere."""
    schema = OmegaConf.structured(Recipe)
    if content.get("placement", {}).get("hosts"):
        schema.placement.hosts = {}  # the recipe's own hosts take the place of the default ones
    try:
        merged = OmegaConf.merge(schema, content)
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
