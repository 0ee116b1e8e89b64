"""BlackJack by GRPO with the loop, the advantage and the loss written by hand: copy this file and change what you study.

    python examples/blackjack_grpo/train.py [--steps 300] [--seed 0] [--out runs/by_hand]

The actors come from a recipe; what `python -m rlmesh.run` does around its loop (rollouts beside training, checkpoints, metrics
files, pictures) is left out here.
"""

import asyncio
from pathlib import Path

import numpy as np
import torch
import typer
from blackjack_env.warm_start import random_play

from rlmesh import ActorMesh, load_recipe
from rlmesh.errors import RLMeshError
from rlmesh.evals import ask
from rlmesh.evals.blackjack import BlackjackEvaluator
from rlmesh.losses.inputs import LossInputs
from rlmesh.rollout.collate import collate, supervised
from rlmesh.rollout.types import Task

CONFIG = Path(__file__).parents[2] / "configs" / "blackjack.yaml"
GROUPS, GROUP_SIZE, WARM_UP_STEPS = 32, 16, 50


def advantages(rewards: list[float]) -> np.ndarray:
    """The return against the group's mean, [G]."""
    return np.array(rewards) - np.mean(rewards)


def clipped_policy_gradient(
    inputs: LossInputs, clip_low: float, clip_high: float, kl_coef: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of each token, [M]. The trainer's process imports it by this file's name."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    gain = torch.minimum(ratio * inputs.advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * inputs.advantages)
    away = inputs.ref_logprobs - inputs.logprobs
    kl = away.exp() - away - 1
    return -gain + kl_coef * kl, {"kl": kl.detach()}


async def warm_up(mesh: ActorMesh, seed: int) -> None:
    """Random legal play, so that answers have the form that the environment reads."""
    pairs = random_play(seed, WARM_UP_STEPS * 256)
    prompts, answers = await mesh.rollout.render(*zip(*pairs, strict=True))
    for first in range(0, len(pairs), 256):
        batch = supervised(prompts[first : first + 256], answers[first : first + 256])
        await mesh.trainer.forward_backward(batch, "cross_entropy", {})
        await mesh.trainer.optim_step(3e-3)
    await mesh.trainer.reset_optimizer()


async def publish(mesh: ActorMesh, version: int) -> None:
    """The trainer's weights are what the policy server serves."""
    await mesh.trainer.publish(version)
    await mesh.policy.each("fetch", version)


async def play(mesh: ActorMesh, step: int, seeds: np.random.Generator) -> list:
    """One step's groups; the episodes of a group share the visible deal."""
    tasks = [Task(step, i, GROUP_SIZE, *seeds.integers(2**31, size=2).tolist()) for i in range(GROUPS)]
    groups = [group for group, _ in await asyncio.gather(*[mesh.rollout.run_group(task) for task in tasks])]
    for group in groups:
        scored = [episode for episode in group.episodes if episode.reward is not None]  # the environment did not fail
        for episode, advantage in zip(scored, advantages([e.reward for e in scored]), strict=True):
            episode.advantage = advantage
    return groups


async def greedy_value(mesh: ActorMesh) -> float:
    """The exact value of the policy, by dynamic programming over its answers in every state."""
    report = await BlackjackEvaluator().evaluate(ask(mesh.rollout.render, mesh.policy.score))
    return report.metrics["eval/blackjack/greedy_value"]


async def train(mesh: ActorMesh, steps: int, seed: int) -> None:
    seeds = np.random.default_rng(seed)
    await warm_up(mesh, seed)
    await publish(mesh, version=0)
    await mesh.ref_model.each("load", 0)
    for step in range(steps):
        left = 1 - step / steps
        batch = collate(groups := await play(mesh, step, seeds))
        batch = batch.with_ref_logprobs(await mesh.ref_model.score(batch))
        coefficients = {"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.3 * left}
        output = await mesh.trainer.forward_backward(batch, "train.clipped_policy_gradient", coefficients)
        stats = output.metrics
        await mesh.trainer.optim_step(2e-4 + (2e-3 - 2e-4) * left)
        await publish(mesh, version=step + 1)
        returns = [episode.reward for group in groups for episode in group.episodes if episode.reward is not None]
        print(f"step {step} | reward {np.mean(returns):+.3f} | kl {stats['kl']:.3f} | entropy {stats['entropy']:.3f}")
        if (step + 1) % 20 == 0 or step + 1 == steps:
            print(f"  greedy value {await greedy_value(mesh):.4f} (hit below 17: -0.0759, optimal: -0.0431)")
    await mesh.trainer.save(f"{mesh.recipe.run.dir}/checkpoint")


async def start(steps: int, seed: int, out: str) -> None:
    async with ActorMesh(load_recipe(CONFIG, [f"run.dir={out}", f"run.seed={seed}"])) as mesh:
        await mesh.guard(train(mesh, steps, seed))


def main(steps: int = 300, seed: int = 0, out: str = "runs/by_hand") -> None:
    if Path(out).exists():
        raise SystemExit(f"train.py: {out} exists already; choose another --out")
    try:
        asyncio.run(start(steps, seed, out))
    except RLMeshError as error:
        raise SystemExit(f"train.py: {error}") from None


if __name__ == "__main__":
    typer.run(main)
