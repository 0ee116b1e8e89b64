"""What can be wrong with a recipe whose keys and types are right: ranges, choices, import paths, combinations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlmesh import schedule
from rlmesh.algorithms.config import WarmStartConfig
from rlmesh.code_checks import code_problems, find_module, nearest_of
from rlmesh.errors import RecipeError
from rlmesh.evals import EVALUATORS
from rlmesh.losses import POLICY_LOSSES
from rlmesh.losses.advantages import ADVANTAGES
from rlmesh.mesh.plan import plan_placement
from rlmesh.models.folder import architecture_problem, check_folder, check_same, read_config
from rlmesh.models.source import BUILT
from rlmesh.recipe import Recipe

_OPERATORS = {"ge": ("at least", lambda v, x: v >= x), "gt": ("above", lambda v, x: v > x)}
_OPERATORS |= {"le": ("at most", lambda v, x: v <= x), "lt": ("below", lambda v, x: v < x)}
_LONGEST_NAME = 200  # bytes; file systems take 255


def needed_actors(recipe: Recipe) -> list[str]:
    """The actors that the recipe starts, by their names in `placement.actors`."""
    actors = ["policy", "trainer", "replay_buffer", "reward", "rollout"]
    if max(schedule.ends(recipe.algorithm.kl_coef)) > 0:
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
    found += _tracker_problems(recipe)
    found += _combination_problems(recipe)
    found += _text_problems(recipe)
    found += _batch_invariance_problems(recipe)
    found += _model_problems(recipe)
    found += _placement_problems(recipe)
    return found


def _option_problems(config: Any, path: str, total_steps: int) -> Iterator[str]:
    for f in fields(config):
        value, where = getattr(config, f.name), f"{path}{f.name}"
        if isinstance(value, WarmStartConfig):
            yield from _option_problems(value, f"{where}.", value.steps)  # its schedules run over its own steps
        elif is_dataclass(value):
            yield from _option_problems(value, f"{where}.", total_steps)
        elif isinstance(value, dict) and all(is_dataclass(part) for part in value.values()):
            for name, part in value.items():
                yield from _option_problems(part, f"{where}.{name}.", total_steps)
        elif f.metadata:
            yield from _value_problems(value, where, f.metadata, total_steps)


def _value_problems(value: Any, where: str, metadata: Any, total_steps: int) -> Iterator[str]:
    if metadata["schedule"] and (wrong := list(_schedule_problems(value, where, total_steps))):
        yield from wrong
        return
    if metadata["choices"] is not None and value not in metadata["choices"]:
        yield f"{where}: {value!r} is not one of {', '.join(map(str, metadata['choices']))}" + nearest_of(
            str(value), map(str, metadata["choices"])
        )
    numbers = value if isinstance(value, (list, tuple)) else schedule.ends(value) if metadata["schedule"] else [value]
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        yield f"{where}: {value} is not a finite number"
        return
    for name, limit in metadata["limits"].items():
        words, holds = _OPERATORS[name]
        if any(not holds(number, limit) for number in numbers):
            yield f"{where}: {', '.join(map(str, numbers))} must be {words} {limit:g}"
            return
    if any(isinstance(number, int) and abs(number) >= 2**63 for number in numbers):
        yield f"{where}: a number of more than 63 bits is too large"


def _schedule_problems(value: Any, where: str, total_steps: int) -> Iterator[str]:
    if not isinstance(value, dict):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            yield f"{where}: {value!r} is neither a number nor a schedule ({{from: ..., to: ...}})"
        return
    for key in value:
        if key not in schedule.KEYS:
            nearest = get_close_matches(str(key), schedule.KEYS, n=1, cutoff=0.0)
            yield f"{where}.{key}: unknown key of a schedule; did you mean '{nearest[0]}'?"
    for problem in schedule.problems(value, total_steps):
        yield f"{where}: {problem}"


def _import_problems(recipe: Recipe) -> Iterator[str]:
    """Whatever a recipe names by its import path, and the arguments that it gives to it."""
    coefficients = ("clip_low", "clip_high", "kl_coef")
    yield from code_problems(
        "algorithm.loss", recipe.algorithm.loss, POLICY_LOSSES, args={}, places=1, given=coefficients
    )
    yield from code_problems("algorithm.advantage", recipe.algorithm.advantage, ADVANTAGES, args={}, places=1)
    yield from code_problems("reward.function", recipe.reward.function, args=recipe.reward.args, places=1)
    if recipe.eval.name:
        yield from code_problems(
            "eval.name", EVALUATORS.get(recipe.eval.name, recipe.eval.name), EVALUATORS, args=recipe.eval.args
        )
    if start := recipe.warm_start:
        yield from code_problems("warm_start.data", start.data, args=start.args, given=["seed", "count"])
    if ":" in recipe.env.app and not recipe.env.url:
        yield from code_problems("env.app", recipe.env.app.replace(":", ".", 1))


def _tracker_problems(recipe: Recipe) -> Iterator[str]:
    """Trackers are packages of their own."""
    for tracker in ("wandb", "trackio"):
        if getattr(recipe.metrics, tracker) and find_module(tracker) is None:
            yield f"metrics.{tracker}: the package '{tracker}' is not installed"


def _batch_invariance_problems(recipe: Recipe) -> Iterator[str]:
    placed = recipe.placement.actors
    for key, actor, wanted in (
        ("policy.engine.batch_invariant", placed.policy, recipe.policy.engine.batch_invariant),
        ("trainer.batch_invariant", placed.trainer, recipe.trainer.batch_invariant),
    ):
        if wanted and not (actor.gpus or actor.gpus_of):
            yield f"{key}: these kernels need a GPU, and the actor has none (placement.actors)"
    if recipe.trainer.batch_invariant and find_module("batch_invariant_ops") is None:
        yield "trainer.batch_invariant: the package 'batch_invariant_ops' is not installed"


def _combination_problems(recipe: Recipe) -> Iterator[str]:
    rollout, tiny, engine = recipe.rollout, recipe.model.tiny, recipe.policy.engine
    if rollout.group_size == 1 and recipe.algorithm.advantage in ADVANTAGES:
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
    if recipe.model.source == "tiny-qwen3" and tiny.num_kv_heads % recipe.trainer.parallelism.tensor_parallel:
        yield (
            f"trainer.parallelism.tensor_parallel: {recipe.trainer.parallelism.tensor_parallel} ranks cannot share "
            f"model.tiny.num_kv_heads = {tiny.num_kv_heads}; it has to divide that number"
        )
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        yield (
            f"policy.engine.max_num_batched_tokens: {engine.max_num_batched_tokens} tokens in one pass cannot hold one token "
            f"of each of policy.engine.max_num_seqs = {engine.max_num_seqs} sequences; raise it, or lower max_num_seqs"
        )
    if recipe.policy.sleep and recipe.replay_buffer.max_policy_age:
        yield (
            "policy.sleep: the next step's rollouts would need the engine while the trainer works; set "
            "replay_buffer.max_policy_age to 0"
        )
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
    if recipe.env.url and not _is_websocket(recipe.env.url):
        yield f"env.url: '{recipe.env.url}' is not the address of a server, such as ws://127.0.0.1:8000"
    if not recipe.env.url and ":" not in recipe.env.app:
        yield (
            f"env.app: '{recipe.env.app}' is not an application such as my_package.my_module:app; name one to start, or "
            "give env.url of a running server"
        )


def _is_websocket(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("ws", "wss") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is none
        return False


def _text_problems(recipe: Recipe) -> Iterator[str]:
    for key, text in (
        ("run.name", recipe.run.name),
        ("run.dir", recipe.run.dir),
        ("model.source", recipe.model.source),
        ("metrics.project", recipe.metrics.project),
    ):
        if not text:
            yield f"{key}: it must not be empty"
        elif not text.isprintable():
            yield f"{key}: {text!r} has characters that cannot be printed"
    if (name := recipe.run.name) in (".", "..") or "/" in name or len(name.encode()) > _LONGEST_NAME:
        yield f"run.name: {name!r} is not a name for a directory (no '/', at most {_LONGEST_NAME} bytes)"


def _model_problems(recipe: Recipe) -> Iterator[str]:
    """What the model's files say, where they are: the recipe's own copy of config.json, and the model's folder."""
    model = recipe.model
    try:
        folder = Path(model.source).expanduser()
    except RuntimeError as error:  # a user who is not there
        yield f"model.source: '{model.source}': {error}"
        return
    here = bool(model.source) and folder.is_dir() and model.source not in BUILT
    key, path = ("model.config", Path(model.config)) if model.config else ("model.source", folder / "config.json")
    if not (model.config or here):
        return
    try:
        if here:
            check_folder(folder)
        hf = read_config(path, key)
        if problem := architecture_problem(hf):
            raise RecipeError(f"{key}: {path} {problem}")
        if here:
            check_same(path, folder)
    except RecipeError as error:
        yield str(error)
        return
    ranks, heads = recipe.trainer.parallelism.tensor_parallel, hf["num_key_value_heads"]
    if heads % ranks:
        yield (
            f"trainer.parallelism.tensor_parallel: {ranks} ranks cannot share the {heads} key and value heads of {path}; it "
            "has to divide that number"
        )
    if model.max_length > (longest := hf["max_position_embeddings"]):
        yield f"model.max_length: {model.max_length} is more than the {longest} positions of {path}"


def _placement_problems(recipe: Recipe) -> Iterator[str]:
    placed, world_size = recipe.placement.actors, recipe.trainer.parallelism.world_size
    hosts, job = recipe.placement.hosts, recipe.placement.job
    if job == "local":
        for name in (name for name, config in hosts.items() if config.count != 1):
            yield f"placement.hosts.{name}.count: job 'local' is this one machine; set it to 1, or use job: process"
    with_gpus = [name for name, config in hosts.items() for _ in range(config.count) if config.gpus]
    if len(with_gpus) > 1:  # both jobs stay on this machine, whose GPUs would be numbered from 0 for each of them
        yield (
            f"placement.hosts.{with_gpus[-1]}.gpus: job '{job}' runs every host on this machine, and its GPUs would be given to "
            f"{len(with_gpus)} hosts ({', '.join(with_gpus)}); give gpus to one host of count 1"
        )
    if placed.trainer.procs != world_size:
        yield (
            f"placement.actors.trainer.procs: trainer.parallelism asks for {world_size} ranks, and there are "
            f"{placed.trainer.procs} procs; set it to {world_size}"
        )
    if placed.trainer.replicas != 1:
        yield "placement.actors.trainer.replicas: there is one trainer; use trainer.parallelism for more ranks"
    if placed.replay_buffer.replicas != 1:
        yield "placement.actors.replay_buffer.replicas: there is one replay_buffer; set it to 1"
    for actor in ("policy", "ref_model", "replay_buffer", "reward", "rollout", "env"):
        if getattr(placed, actor).procs != 1:
            more = "" if actor == "replay_buffer" else f"; use placement.actors.{actor}.replicas for more"
            yield f"placement.actors.{actor}.procs: a {actor} is one process{more}"
    for actor in ("trainer", "ref_model"):
        if getattr(placed, actor).gpus > 1:
            yield f"placement.actors.{actor}.gpus: a process of it uses one GPU; the trainer takes more as ranks (trainer.parallelism)"
    try:
        plan_placement(recipe.placement, needed_actors(recipe))
    except RecipeError as error:
        yield str(error)
