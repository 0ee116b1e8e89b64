"""`rlmesh eval`: the recipe's evaluation of one model, with a policy server and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rlmesh import evals
from rlmesh.actors.launch import policy_environment
from rlmesh.actors.policy_server import PolicyServer
from rlmesh.actors.service import Replica, Service
from rlmesh.errors import RecipeError
from rlmesh.evals import EvalReport, ask, resolve_evaluator
from rlmesh.mesh.plan import plan_placement
from rlmesh.mesh.procs import Hosts
from rlmesh.mesh.scratch import Scratch
from rlmesh.mesh.supervision import Supervision
from rlmesh.metrics.console import Console
from rlmesh.models.source import resolve_model
from rlmesh.recipe import Recipe, load_recipe
from rlmesh.rollout.render import Renderer
from rlmesh.run_directory import RunDirectory
from rlmesh.stopping import interruptible, until_stopped


def evaluate(target: str, recipe_path: Path | None, step: int | None, console: Console) -> EvalReport:
    """Evaluate a run's checkpoint (the newest one, that of `step`, or step 0: the model that it began with), or any model.

    `recipe_path` names the recipe whose evaluation is wanted when `target` is a model: a folder, a hub id or `tiny-qwen3`.

    Raises: RLMeshError when there is no such model, or the recipe has no evaluation.
    """
    if (Path(target) / "recipe.yaml").exists() and recipe_path:
        raise RecipeError(f"--recipe is for a model; the run {target} has a recipe of its own")
    if recipe_path and step is not None:
        raise RecipeError("--step is for a run; a model has no steps")
    with interruptible(), Scratch(), TemporaryDirectory(prefix="rlmesh-eval-") as scratch:
        run = Path(target)
        if (run / "recipe.yaml").exists():
            recipe = load_recipe(run / "recipe.yaml")
            model = None if step == 0 else RunDirectory(run).model(step)
        elif recipe_path:
            recipe, model = load_recipe(recipe_path, [f"model.source={target}"]), None
        else:
            raise RecipeError(f"{target} is not a run directory; to evaluate a model, name a recipe: --recipe RECIPE")
        if not recipe.eval.name:
            raise RecipeError("eval.name: the recipe has no evaluation")
        if model is None:
            model = resolve_model(recipe.model, Path(scratch) / "model", recipe.run.seed)
        shown = target if Path(scratch) in model.parents else model
        console.print(f"{recipe.eval.name} evaluation of {shown}")
        log_dir = run / "logs" if (run / "logs").is_dir() else Path(scratch)
        return asyncio.run(until_stopped(_evaluate(recipe, model, log_dir, console)))


async def _evaluate(recipe: Recipe, model: Path, log_dir: Path, console: Console) -> EvalReport:
    evaluator = resolve_evaluator(recipe.eval.name, recipe.eval.args)
    renderer = Renderer(model, recipe.rollout.system_prompt)

    async def render(observations: list[str], answers: list[str]) -> tuple[list[list[int]], list[list[int]]]:
        return [renderer.first_prompt(text) for text in observations], [renderer.answer(text) for text in answers]

    with Supervision() as supervision:
        policy = _spawn_policy(recipe, model, log_dir, supervision.name("policy"))
        with console.waiting("policy server (vLLM)"):
            await supervision.guard(policy.setup())
        return await supervision.guard(evals.evaluate(evaluator, recipe.eval.name, ask(render, policy.score)))


def _spawn_policy(recipe: Recipe, model: Path, log_dir: Path, name: str) -> Service:
    one = replace(recipe.placement.actors.policy, replicas=1, gpus_of="")
    placement = replace(recipe.placement, actors=replace(recipe.placement.actors, policy=one))
    [plan] = plan_placement(placement, ["policy"])["policy"]
    launch = {"OMP_NUM_THREADS": str(one.threads), **policy_environment(recipe.policy)}
    procs = Hosts(placement).spawn("eval_policy_0", one.hosts, plan, launch, log_dir)
    arguments = (recipe.policy, str(model), recipe.model.max_length, recipe.rollout.temperature)
    actor = procs.spawn(name, PolicyServer, *arguments)
    return Service(
        "PolicyServer", [Replica(actor)], max(recipe.policy.request_timeout_s, recipe.policy.start_timeout_s) + 10
    )
