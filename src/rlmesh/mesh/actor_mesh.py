"""ActorMesh: a recipe's actors, running and wired together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from monarch.actor import Actor
from monarch.spmd import setup_torch_elastic_env_async

from rlmesh.actors.env_host import EnvHost
from rlmesh.actors.launch import policy_environment
from rlmesh.actors.policy_server import PolicyServer
from rlmesh.actors.reference_model import ReferenceModel
from rlmesh.actors.replay_buffer import ReplayBuffer
from rlmesh.actors.reward_actor import RewardActor
from rlmesh.actors.rollout_worker import RolloutWorker
from rlmesh.actors.service import Service
from rlmesh.actors.titan_trainer import TitanTrainer
from rlmesh.errors import ActorFailure, RecipeError
from rlmesh.mesh.plan import ReplicaPlan, plan_placement
from rlmesh.mesh.procs import Hosts
from rlmesh.mesh.scratch import Scratch
from rlmesh.mesh.supervision import Supervision
from rlmesh.models.source import resolve_model
from rlmesh.recipe import Recipe
from rlmesh.recipe_checks import needed_actors
from rlmesh.tasks import together
from rlmesh.weights import WeightStore

log = logging.getLogger(__name__)
_CLOSE_LIMIT_S = 10.0
_ONE_PROC = ReplicaPlan(hosts=(0,), gpus=(((),),))

Waiting = Callable[[str], AbstractContextManager]


class ActorMesh:
    """The recipe's job, host meshes, proc meshes and actors, from start to stop.

    `policy`, `trainer`, `ref_model` (None when the loss has no KL term), `replay_buffer`, `reward` and `rollout` are
    `Service` handles: `await mesh.trainer.optim_step(lr=1e-3)` calls the actor's endpoint. With `actors` only those named
    start, and the other handles are None. What can start at the same time does; stopping goes the other way round, also when
    a start failed half-way, and leaves nothing running.

    >>> async with ActorMesh(recipe) as mesh:                       # doctest: +SKIP
    ...     group, metrics = await mesh.guard(mesh.rollout.run_group(task))

    Raises: RecipeError before anything starts, ActorFailure when an actor cannot start.
    """

    policy: Service
    trainer: Service
    ref_model: Service | None
    replay_buffer: Service
    reward: Service
    rollout: Service

    def __init__(
        self, recipe: Recipe, waiting: Waiting = lambda what: nullcontext(), actors: Sequence[str] | None = None
    ):
        self.recipe, self._waiting = recipe, waiting
        self._actors = needed_actors(recipe) if actors is None else list(actors)
        self._log_dir = Path(recipe.run.dir) / "logs"
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecipeError(f"run.dir: cannot write {recipe.run.dir}: {error}") from error
        # Here and not at the start: a download can be interrupted, as long as no event loop is running.
        self.model_path = str(resolve_model(recipe.model, Path(recipe.run.dir) / "model", recipe.run.seed))

    async def __aenter__(self) -> ActorMesh:
        async with AsyncExitStack() as stack:
            self._supervision = stack.enter_context(Supervision())
            stack.enter_context(Scratch())  # kills what is left at the end
            stack.push_async_exit(self._stop)
            await self.guard(self._start())
            self._started = stack.pop_all()
        return self

    async def __aexit__(self, *error) -> None:
        await self._started.__aexit__(*error)

    async def guard(self, work: Coroutine) -> Any:
        """Do the work until it is done, or until the process of any actor dies: then ActorFailure names it."""
        return await self._supervision.guard(work)

    @asynccontextmanager
    async def policy_asleep(self) -> AsyncIterator[None]:
        """With `policy.sleep`: the policy servers give their memory free for the block; else nothing."""
        if not (self.policy and self.recipe.policy.sleep):
            yield
            return
        await self.policy.each("sleep")
        yield  # after an error nothing is served any more
        await self.policy.each("wake_up")

    async def _start(self) -> None:
        recipe = self.recipe
        self._plan = plan_placement(recipe.placement, self._actors)
        self._hosts = Hosts(recipe.placement)
        self._spawn_actors()
        self.store = await self._ready("weight store (TorchStore)", self._start_store())
        if self.reward:
            await self.reward.each("setup")
        if recipe.policy.sleep:
            await self._setup_policy()  # it measures what memory is free, which the others would change meanwhile
            async with self.policy_asleep():
                await self._setup_others()
        else:
            await together(self._setup_policy(), self._setup_others())

    async def _start_store(self) -> WeightStore:
        placement = self.recipe.placement
        procs = self._hosts.spawn("weight_store", placement.actors.trainer.hosts, _ONE_PROC, {}, self._log_dir)
        # Not across hosts: both kinds of job keep all of theirs on this machine.
        store = await WeightStore.start(self.recipe.weights, across_hosts=False, procs=procs)
        self._supervision.watch(store.ledger_name, "weight store")
        return store

    def _spawn_actors(self) -> None:
        """Start every proc and actor; Monarch does so in the background, the setups wait for it."""
        recipe, model, temperature = self.recipe, self.model_path, self.recipe.rollout.temperature
        step_limit_s, take_limit_s = recipe.trainer.step_timeout_s, recipe.replay_buffer.take_timeout_s
        # An actor's own limits say more than a limit on the call: let them speak first.
        self.policy = self._spawn(
            "policy",
            PolicyServer,
            *(recipe.policy, model, recipe.model.max_length, temperature, recipe.weights.pause),
            limit_s=max(recipe.policy.request_timeout_s, recipe.policy.start_timeout_s) + 10,
            env=policy_environment(recipe.policy),
        )
        self.trainer = self._spawn(
            "trainer", TitanTrainer, *(recipe.trainer, model, recipe.run.seed, temperature), limit_s=step_limit_s
        )
        reference = (recipe.ref_model, model, recipe.trainer.pack_length, temperature)
        self.ref_model = self._spawn("ref_model", ReferenceModel, *reference, limit_s=step_limit_s)
        self.replay_buffer = self._spawn("replay_buffer", ReplayBuffer, recipe.replay_buffer, limit_s=take_limit_s + 10)
        # The groups of a step may all wait for one RewardActor.
        episodes = recipe.rollout.group_size * recipe.rollout.groups_per_step
        self.reward = self._spawn("reward", RewardActor, recipe.reward, limit_s=recipe.reward.timeout_s * episodes + 10)
        rollout = (recipe.rollout, recipe.env, model, recipe.model.max_length, self.policy, self.reward)
        self.rollout = self._spawn("rollout", RolloutWorker, *rollout, limit_s=recipe.rollout.timeout_s)
        env_limit_s = recipe.env.start_timeout_s + 10
        self._env = self._spawn("env", EnvHost, *(recipe.env, str(self._log_dir.resolve())), limit_s=env_limit_s)

    def _spawn(
        self, actor: str, cls: type[Actor], *args, limit_s: float, env: dict[str, str] | None = None
    ) -> Service | None:
        """One Monarch actor mesh per replica, and the handle to them; None for an actor that is not asked for."""
        if actor not in self._plan:
            return None
        placement = getattr(self.recipe.placement.actors, actor)
        launch = {"OMP_NUM_THREADS": str(placement.threads), "TOKENIZERS_PARALLELISM": "false", **(env or {})}
        replicas = []
        for index, plan in enumerate(self._plan[actor]):
            name = f"{actor}_{index}"
            procs = self._hosts.spawn(name, placement.hosts, plan, launch, self._log_dir)
            replicas.append(procs.spawn(self._supervision.name(name), cls, *args))
        return Service(cls.__name__, replicas, limit_s, [f"{actor}_{index}" for index in range(len(replicas))])

    async def _setup_policy(self) -> None:
        if self.policy:
            await self._ready("policy server (vLLM)", self.policy.each("setup", self.store))

    async def _setup_others(self) -> None:
        await together(
            *([self._ready("trainer (torchtitan)", self._setup_trainer())] if self.trainer else []),
            *([self._ready("environment and rollout workers", self._setup_rollout())] if self.rollout else []),
            *([self._ready("reference model", self.ref_model.each("setup", self.store))] if self.ref_model else []),
        )

    async def _setup_trainer(self) -> None:
        limit_s = self.recipe.trainer.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await setup_torch_elastic_env_async(self._hosts.procs["trainer_0"])
                await self.trainer.each("setup", self.store)
        except TimeoutError:
            raise ActorFailure(f"TitanTrainer was not ready within {limit_s:g} s (trainer.start_timeout_s)") from None

    async def _setup_rollout(self) -> None:
        urls = await self._env.each("start") if self._env else [self.recipe.env.url]
        await self.rollout.each("setup", urls)

    async def _ready(self, what: str, start: Awaitable) -> Any:
        with self._waiting(what):
            return await start

    async def _stop(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the actors in the order in which they depend on each other, then their procs and hosts.

        After an error, or Ctrl-C, nothing of them is needed any more, and some may not answer: then they are killed.
        """
        if kind is not None:
            return
        for service in ("rollout", "_env", "policy", "ref_model", "trainer"):
            if handle := getattr(self, service, None):
                await self._limited(service, handle.each("close"))
        await self._limited("weight store", self.store.stop())
        await self._limited("procs", self._hosts.stop())

    @staticmethod
    async def _limited(what: str, stop: Awaitable) -> None:
        """One that is dead or stuck must not keep the others from stopping; it is killed in any case."""
        try:
            async with asyncio.timeout(_CLOSE_LIMIT_S):
                await stop
        except Exception as error:
            log.info("while stopping %s: %s", what, str(error) or type(error).__name__)
