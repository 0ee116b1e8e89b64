"""ActorMesh: a recipe's actors, running and wired together."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
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
from rlmesh.actors.service import Replica, Service
from rlmesh.actors.titan_trainer import TitanTrainer
from rlmesh.errors import ActorFailure, RecipeError
from rlmesh.mesh.plan import ReplicaPlan, plan_placement
from rlmesh.mesh.procs import Hosts
from rlmesh.mesh.replacements import Listener, Replacements
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
# Whoever takes their place can be given all that they had. What the others have is a step's work: a run goes back to its checkpoint.
_REPLACEABLE = ("policy", "reward", "rollout", "env")

Waiting = Callable[[str], AbstractContextManager]


class ActorMesh:
    """The recipe's job, host meshes, proc meshes and actors, from start to stop.

    `policy`, `trainer`, `ref_model` (None when the loss has no KL term), `replay_buffer`, `reward` and `rollout` are
    `Service` handles: `await mesh.trainer.optim_step(lr=1e-3)` calls the actor's endpoint. With `actors` only those named
    start, and the other handles are None. What can start at the same time does; stopping goes the other way round, also when
    a start failed half-way, and leaves nothing running.

    A policy server, reward actor, rollout worker or environment server that dies is replaced, at most `run.max_restarts` times
    until `replacements.forgive()`, and calls to it are made again; so is a reference model after `load_reference`.

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
        self,
        recipe: Recipe,
        waiting: Waiting = lambda what: nullcontext(),
        actors: Sequence[str] | None = None,
        listener: Listener | None = None,
    ):
        self.recipe, self._waiting, self._listener = recipe, waiting, listener
        self._spawners: dict[str, Callable[[int], Replica]] = {}  # for each kind of actor
        self._spawned: dict[str, str] = {}  # replica -> name of its Monarch actor
        self._env_urls: list[str] = []
        self._reference = ""  # folder of the weights that the reference models took
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
            self._supervision = stack.enter_context(Supervision(lambda death: self.replacements.take_on(death)))
            self.replacements = Replacements(
                self._replace, self.recipe.run.max_restarts, self._supervision.fail, self._listener
            )
            stack.enter_context(Scratch())  # kills what is left at the end
            stack.push_async_exit(self._stop)
            await self.guard(self._start())
            self._watch(*_REPLACEABLE)
            stack.push_async_callback(self.replacements.stop)
            self._started = stack.pop_all()
        return self

    async def __aexit__(self, *error) -> None:
        await self._started.__aexit__(*error)

    async def guard(self, work: Coroutine) -> Any:
        """Do the work until it is done, or until an actor dies that cannot be replaced: then ActorDied names it."""
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

    async def load_reference(self, folder: str) -> None:
        """The reference models take the weights that `TitanTrainer.save_model` wrote, and so will one that replaces another.

        With '' they keep those of the recipe's model.
        """
        self._reference = folder
        if folder:
            await self.ref_model.each("load_saved", folder)
        self._watch("ref_model")

    async def waits(self) -> str:
        """What the episodes wait for at this moment, in words."""
        counts = Counter()
        for worker in await self.rollout.each("waits"):
            counts.update(worker)
        waiting = [f"{count} for {what}" for what, count in counts.items() if count]
        return f"of the episodes wait {', '.join(waiting)}" if waiting else "no episode is being played"

    async def _start(self) -> None:
        recipe = self.recipe
        self._plan = plan_placement(recipe.placement, self._actors)
        self._hosts = Hosts(recipe.placement)
        self._spawn_actors()
        self.store = await self._ready("weight store (TorchStore)", self._start_store())
        await self._set_up("reward")
        if recipe.policy.sleep:
            await self._set_up_policy()  # it measures what memory is free, which the others would change meanwhile
            async with self.policy_asleep():
                await self._set_up_others()
        else:
            await together(self._set_up_policy(), self._set_up_others())

    async def _start_store(self) -> WeightStore:
        placement = self.recipe.placement
        procs = self._hosts.spawn("weight_store", placement.actors.trainer.hosts, _ONE_PROC, {}, self._log_dir)
        # Not across hosts: both kinds of job keep all of theirs on this machine.
        store = await WeightStore.start(self.recipe.weights, across_hosts=False, procs=procs)
        self._supervision.watch(store.ledger_name, "weight_store")
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
        reward_limit_s = recipe.reward.timeout_s * episodes + 10
        self.reward = self._spawn("reward", RewardActor, recipe.reward, limit_s=reward_limit_s)
        rollout = (recipe.rollout, recipe.env, model, recipe.model.max_length, self.policy, self.reward)
        group_limit_s = recipe.rollout.timeout_s * (recipe.rollout.retries + 1) + reward_limit_s + 10
        self.rollout = self._spawn("rollout", RolloutWorker, *rollout, limit_s=group_limit_s)
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

        def spawn(index: int) -> Replica:
            name = f"{actor}_{index}"
            procs = self._hosts.spawn(name, placement.hosts, self._plan[actor][index], launch, self._log_dir)
            self._spawned[name] = spawned = self._supervision.name(name)
            return Replica(procs.spawn(spawned, cls, *args), name, spawned)

        self._spawners[actor] = spawn
        return Service(cls.__name__, [*map(spawn, range(len(self._plan[actor])))], limit_s, self.replacements)

    async def _set_up(self, actor: str) -> None:
        if service := self._service(actor):
            await together(*[self._set_up_one(actor, *one) for one in enumerate(service.replicas())])

    async def _set_up_one(self, actor: str, index: int, one: Service) -> None:
        """Make a replica ready, with all that the one before it had if it takes another's place."""
        if actor == "policy":
            await one.setup(self.store, f"policy_{index}")
        elif actor == "reward":
            await one.setup()
        elif actor == "ref_model":
            await one.setup(self.store)
            if self._reference:
                await one.load_saved(self._reference)
        elif actor == "rollout":
            await one.setup(self._env_urls)
        elif actor == "env":
            self._env_urls[index] = await one.start()

    def _service(self, actor: str) -> Service | None:
        return self._env if actor == "env" else getattr(self, actor)

    def _watch(self, *actors: str) -> None:
        """Replace these when they die."""
        for name, spawned in self._spawned.items():
            actor = name.rpartition("_")[0]
            # The memory of an engine that sleeps is the trainer's: no other engine can start meanwhile.
            if actor in actors and not (actor == "policy" and self.recipe.policy.sleep):
                self.replacements.watch(name, spawned)

    async def _replace(self, name: str) -> str:
        """Put a new replica into the place of one that died; returns the name of its Monarch actor."""
        actor, index = name.rpartition("_")[0], int(name.rpartition("_")[2])
        service = self._service(actor)
        self._supervision.forget(self._spawned[name])  # its end has been heard of
        await self._hosts.kill(name)
        replica = self._spawners[actor](index)
        await self._set_up_one(actor, index, service.alone(replica))
        service.replace(index, replica)
        if self.rollout and actor in ("policy", "reward", "env"):
            await self.rollout.each("reconnect", self._env_urls, self.policy, self.reward)
        return replica.spawned

    async def _set_up_policy(self) -> None:
        if self.policy:
            await self._ready("policy server (vLLM)", self._set_up("policy"))

    async def _set_up_others(self) -> None:
        await together(
            *([self._ready("trainer (torchtitan)", self._set_up_trainer())] if self.trainer else []),
            *([self._ready("environment and rollout workers", self._set_up_rollout())] if self.rollout else []),
            *([self._ready("reference model", self._set_up("ref_model"))] if self.ref_model else []),
        )

    async def _set_up_trainer(self) -> None:
        limit_s = self.recipe.trainer.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await setup_torch_elastic_env_async(self._hosts.procs["trainer_0"])
                await self.trainer.each("setup", self.store)
        except TimeoutError:
            raise ActorFailure(f"TitanTrainer was not ready within {limit_s:g} s (trainer.start_timeout_s)") from None

    async def _set_up_rollout(self) -> None:
        self._env_urls = [""] * len(self._plan["env"]) if self._env else [self.recipe.env.url]
        await self._set_up("env")
        await self._set_up("rollout")

    async def _ready(self, what: str, start: Awaitable) -> Any:
        with self._waiting(what):
            return await start

    async def _stop(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the actors in the order in which they depend on each other, then their procs and hosts.

        After an error, or Ctrl-C, nothing of them is needed any more, and some may not answer: then they are killed.
        """
        if kind is not None:
            return
        for actor in ("rollout", "env", "policy", "ref_model", "trainer"):
            if service := self._service(actor):
                await self._limited(actor, service.each("close"))
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
