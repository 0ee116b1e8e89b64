"""RolloutWorker: plays the episodes of a group and has them scored."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from monarch.actor import concurrent_endpoint

from rlmesh.actors.needs_setup import NeedsSetup
from rlmesh.actors.service import Service
from rlmesh.envs.config import EnvConfig
from rlmesh.envs.pool import EnvFailure, EnvPool
from rlmesh.errors import ActorFailure
from rlmesh.metrics import Metrics
from rlmesh.rollout.config import RolloutConfig
from rlmesh.rollout.driver import play
from rlmesh.rollout.render import Renderer
from rlmesh.rollout.sampler import GroupSampler
from rlmesh.rollout.types import Completion, Episode, GenerateRequest, Group, Task
from rlmesh.seeds import fan_out
from rlmesh.tasks import together

_RETRY_S = 1.0  # before an episode is played again; twice as long at each attempt


class RolloutWorker(NeedsSetup):
    """Plays groups of episodes between a PolicyServer and environment servers.

    Invariant: an episode that its environment lost is played again from its start, at most `env.retries` times, and is
    then returned unscored: a failure of the infrastructure never becomes a reward.

    >>> worker = proc_mesh.spawn("rollout", RolloutWorker, recipe.rollout, recipe.env, model_path, max_length,
    ...                          policy, reward)                                        # doctest: +SKIP
    >>> await worker.setup.call_one(["ws://127.0.0.1:8000"])
    >>> group = await worker.run_group.call_one(Task(step=0, index=0, group_size=8, seed=1, shared_seed=2))
    """

    def __init__(
        self,
        config: RolloutConfig,
        env: EnvConfig,
        model_path: str,
        max_length: int,
        policy: Service,
        reward: Service,
    ):
        self._config, self._env = config, env
        self._model_path, self._max_length = model_path, max_length
        self._policy, self._reward = policy, reward
        self._pools: list[EnvPool] = []
        self._counts: Counter[str] = Counter()  # of episodes

    @concurrent_endpoint
    async def setup(self, env_urls: list[str]) -> None:
        """Load the tokenizer, open the pools of the environment servers and begin an episode on each to see that it can.

        Raises: ActorFailure that says what the environment said.
        """
        self._renderer = Renderer(self._model_path, self._config.system_prompt)
        self._pools = [EnvPool(url, self._env) for url in env_urls]
        for pool in self._pools:
            try:
                async with pool.lease() as session:
                    await session.reset(
                        **self._reset_args(Task(step=0, index=0, group_size=1, seed=0, shared_seed=0), 0)
                    )
            except EnvFailure as failure:
                raise ActorFailure(f"{failure} (env.app, env.url and env.args say what is asked of it)") from None

    @concurrent_endpoint
    async def reconnect(self, env_urls: list[str], policy: Service, reward: Service) -> None:
        """Go on with these: one of them has been replaced. What runs on the others is left alone."""
        self._policy, self._reward = policy, reward
        before = {pool.url: pool for pool in self._pools}
        self._pools = [before.pop(pool.url, pool) for pool in (EnvPool(url, self._env) for url in env_urls)]
        for pool in before.values():
            await pool.close()

    @concurrent_endpoint
    async def run_group(self, task: Task) -> tuple[Group, Metrics]:
        """Play and score the task's episodes, all at the same time.

        A group that takes longer than `rollout.timeout_s` is aborted, and begun again with the weights of that time.
        """
        metrics = Metrics()
        with self._counted("all", task.group_size):
            group = await self._play_in_time(task, metrics)
        started = time.perf_counter()
        with self._counted("scoring", len(group.episodes)):
            rewards = await self._reward.score(group.episodes)
        metrics.record("time/reward", time.perf_counter() - started, "max")
        for episode, reward in zip(group.episodes, rewards, strict=True):
            episode.reward = reward
        return group, metrics

    async def _play_in_time(self, task: Task, metrics: Metrics) -> Group:
        limit_s, retries, caller = (
            self._config.timeout_s,
            self._config.retries,
            f"group {task.index} of step {task.step}",
        )
        for _ in range(retries + 1):
            policy = self._policy.sticky()
            try:
                async with asyncio.timeout(limit_s):
                    return await self._play(task, policy, caller, metrics)
            except TimeoutError:
                metrics.record("errors/straggler", 1, "sum")
                await policy.abort(caller)
        raise ActorFailure(f"{caller} was not played within {limit_s:g} s (rollout.timeout_s; tries: {retries + 1})")

    async def _play(self, task: Task, policy: Service, caller: str, metrics: Metrics) -> Group:
        async def generate(requests: list[GenerateRequest]) -> list[list[Completion]]:
            return await policy.generate(requests, caller)

        sampler = GroupSampler(generate, task, self._config.max_tokens)
        try:
            playing = [self._episode(task, index, sampler, metrics) for index in range(task.group_size)]
            return Group(task, await together(*playing))
        finally:
            sampler.close()

    @concurrent_endpoint
    async def render(self, observations: list[str], answers: list[str]) -> tuple[list[list[int]], list[list[int]]]:
        """Tokens of each observation as the first prompt of an episode, and of each answer with its end of sequence."""
        prompts = {text: self._renderer.first_prompt(text) for text in set(observations)}
        completions = {text: self._renderer.answer(text) for text in set(answers)}
        return [prompts[text] for text in observations], [completions[text] for text in answers]

    @concurrent_endpoint
    async def waits(self) -> dict[str, int]:
        """How many episodes wait for what at this moment."""
        counts = self._counts
        return {
            "the policy server": counts["sampling"],
            "their environment": counts["playing"] - counts["sampling"],
            "a free session, or a new try": counts["all"] - counts["playing"],
            "their rewards": counts["scoring"],
        }

    @contextmanager
    def _counted(self, what: str, episodes: int = 1) -> Iterator[None]:
        self._counts[what] += episodes
        try:
            yield
        finally:
            self._counts[what] -= episodes

    async def _episode(self, task: Task, index: int, sampler: GroupSampler, metrics: Metrics) -> Episode:
        async def sample(turn: int, prompt: list[int]) -> Completion:
            with self._counted("sampling"):
                return await sampler.sample(index, turn, prompt)

        for attempt in range(self._env.retries + 1):
            # Another server at each attempt: the one that lost the episode may be the one that is ill.
            pool = self._pools[(task.index + index + attempt) % len(self._pools)]
            try:
                async with pool.lease() as session:
                    with self._counted("playing"):
                        return await play(
                            session,
                            self._reset_args(task, index),
                            sample,
                            self._renderer,
                            self._config,
                            self._max_length,
                            index,
                        )
            except EnvFailure as failure:
                metrics.record(f"errors/{failure.outcome}", 1, "sum")
                outcome, why = failure.outcome, str(failure)
            if attempt < self._env.retries:
                await asyncio.sleep(_RETRY_S * 2**attempt)  # a server that died is started again meanwhile
        return Episode(id="", index=index, outcome=outcome, metadata={"error": why})

    def _reset_args(self, task: Task, index: int) -> dict:
        own = fan_out(task.seed, "env", index)
        if self._env.group_seed:
            return {**self._env.args, "seed": own, self._env.group_seed: task.shared_seed}
        return {**self._env.args, "seed": task.shared_seed}

    @concurrent_endpoint
    async def close(self) -> None:
        """Close the pools' connections."""
        for pool in self._pools:
            await pool.close()
