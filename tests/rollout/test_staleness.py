"""The bound on staleness, over thousands of random schedules of rollouts, training and weight updates."""

import asyncio
from contextlib import nullcontext
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh.algorithms.grpo import grpo
from rlmesh.errors import ActorFailure
from rlmesh.metrics import Metrics
from rlmesh.recipe import Recipe
from rlmesh.rollout.group_queue import GroupQueue
from rlmesh.rollout.types import Completion, Episode, Group, Turn
from rlmesh.tasks import together

REPLICAS = 2  # of the policy server; each takes new weights in its own time
GROUP_SIZE = 2


class Clock:
    """How long things take, in turns of the event loop: a few, and up to 300 for the share `stragglers` of them."""

    def __init__(self, random: Random, stragglers: float):
        self.random, self._stragglers = random, stragglers

    async def wait(self) -> None:
        longest = 300 if self.random.random() < self._stragglers else 3
        for _ in range(self.random.randint(0, longest)):
            await asyncio.sleep(0)


class Trainer:
    """Weights that are nothing but the number of the step that they are for."""

    def __init__(self, clock: Clock, version: int):
        self._clock, self.version = clock, version
        self._steady = asyncio.Lock()  # as TitanTrainer's: an optimizer step waits for the copy
        self.trained, self.probed = [], {}  # (version, batch), and for each published version whether it had a probe

    async def forward_backward(self, batch, loss, coefficients):
        self.trained.append((self.version, batch))
        await self._clock.wait()
        return SimpleNamespace(metrics={}, logprobs=batch.logprobs)

    async def optim_step(self, lr):
        async with self._steady:
            await self._clock.wait()
            self.version += 1
        return {}

    async def publish(self, version, probe):
        async with self._steady:
            await self._clock.wait()
            assert version == self.version
        self.probed[version] = probe


class Policy:
    """Replicas that take new weights one by one, while they serve."""

    def __init__(self, clock: Clock, refused: int | None):
        self._clock, self._refused, self.versions = clock, refused, [-1] * REPLICAS

    async def each(self, endpoint, version):
        assert endpoint == "fetch"
        return await together(*[self._fetch(replica, version) for replica in range(REPLICAS)])

    async def _fetch(self, replica, version):
        await self._clock.wait()
        if version == self._refused:
            raise ActorFailure(f"version {version} is refused")
        assert version > self.versions[replica]
        self.versions[replica] = version
        return {"paused_s": 0.0}

    async def generate(self) -> Completion:
        """Some tokens, each with the version that the replica has at that moment."""
        replica, versions = self._clock.random.randrange(REPLICAS), []
        for _ in range(self._clock.random.randint(1, 4)):
            await self._clock.wait()
            versions.append(self.versions[replica])
        return Completion([0] * len(versions), [-1.0] * len(versions), "stop", versions)


class Rollout:
    """Episodes of one turn, whose prompt says which step and which place they are for."""

    def __init__(self, clock: Clock, policy: Policy):
        self._clock, self._policy = clock, policy

    async def run_group(self, task):
        """A straggler is aborted, and played again with the weights of that time."""
        while self._clock.random.random() < 0.2:
            await self._play(task)
        return await self._play(task)

    async def _play(self, task):
        async def play(index: int) -> Episode:
            turn = Turn("", [task.step, task.index], await self._policy.generate(), "")
            return Episode(str(index), index, [turn], reward=float(self._clock.random.random() < 0.5))

        return Group(task, await together(*[play(index) for index in range(GROUP_SIZE)])), Metrics()


class Bookkeeping:
    """What the loop needs of a Run; now and then a step waits for its version, as for an evaluation. Nobody waits for the last one."""

    checkpoint = None

    def __init__(self, clock: Clock, first_step: int, steps: int):
        self._clock, self.first_step, self._steps = clock, first_step, steps

    def timed(self, *_):
        return nullcontext()

    def record(self, *_):
        pass

    async def steps(self, served):
        for step in range(self.first_step, self._steps):
            if self._clock.random.random() < 0.2:
                await served(step)
            yield step

    async def finish(self, step, groups):
        await self._clock.wait()


async def simulate(
    random,
    *,
    stragglers=0.0,
    first=0,
    steps=8,
    groups=2,
    replacements=0,
    verify_every=1,
    refused=None,
    admitted_age=1,
    max_policy_age=1,
):
    """The real loop and the real queue with everything around them simulated; returns the mesh at the end.

    `admitted_age` is the bound that the loop dispatches by, `max_policy_age` the one that the queue checks.
    """
    recipe = Recipe()
    recipe.run.steps, recipe.rollout.groups_per_step = steps, groups
    recipe.replay_buffer.max_policy_age = admitted_age
    recipe.algorithm.replacements, recipe.weights.verify_every = replacements, verify_every
    recipe.algorithm.mismatch.sequences = 0  # the policy has no logprobs to compare
    clock = Clock(random, stragglers)
    trainer, policy = Trainer(clock, first), Policy(clock, refused)
    mesh = SimpleNamespace(
        trainer=trainer,
        policy=policy,
        policy_asleep=nullcontext,
        ref_model=None,
        rollout=Rollout(clock, policy),
        replay_buffer=GroupQueue(max_policy_age, take_timeout_s=30),
    )
    async with asyncio.timeout(30):  # a deadlock fails instead of hanging
        await grpo(mesh, recipe, Bookkeeping(clock, first, steps))
    return mesh


@settings(max_examples=2500, deadline=None, derandomize=True)
@given(
    random=st.randoms(use_true_random=True),
    stragglers=st.sampled_from([0.0, 0.02, 0.2]),
    first=st.sampled_from([0, 3]),
    steps=st.integers(1, 6),
    groups=st.integers(1, 3),
    replacements=st.sampled_from([0, 100]),
    age=st.integers(0, 4),
)
def test_every_step_trains_on_its_own_groups_and_on_no_token_outside_the_bound(
    random, stragglers, first, steps, groups, replacements, age
):
    options = dict(stragglers=stragglers, first=first, steps=first + steps, groups=groups, replacements=replacements)
    mesh = asyncio.run(simulate(random, **options, admitted_age=age, max_policy_age=age))
    trained = mesh.trainer.trained
    assert mesh.policy.versions == [first + steps] * REPLICAS  # the last weights too
    assert [version for version, _ in trained] == list(range(first, first + steps))
    for step, batch in trained:
        prompts = [tuple(batch.tokens[start : start + 2]) for start in batch.offsets[:-1]]
        assert prompts == [(step, index) for index in range(groups) for _ in range(GROUP_SIZE)]
        versions = batch.versions[batch.loss_mask]  # with age 0 all of them are the step's own
        assert max(first, step - age) <= versions.min() and versions.max() <= step


def test_the_schedules_reach_the_bound_and_change_weights_under_running_episodes():
    """Else they would not show much."""
    ages, changed = set(), 0
    for seed in range(50):
        mesh = asyncio.run(simulate(Random(seed), stragglers=0.02, admitted_age=3, max_policy_age=3))
        for step, batch in mesh.trainer.trained:
            versions = batch.versions[batch.loss_mask]
            ages |= set(step - versions)
            changed += sum(np.ptp(batch.versions[start + 2 : end]) > 0 for start, end in pairwise(batch.offsets))
    assert ages == {0, 1, 2, 3} and changed > 50


def test_without_the_limit_on_admission_stale_groups_come_and_are_refused():
    with pytest.raises(ActorFailure, match="version 2 trains on groups of at most 1 versions before it"):
        asyncio.run(simulate(Random(0), admitted_age=8, max_policy_age=1))


@pytest.mark.parametrize("version", [0, 2, 8])
def test_weights_that_are_refused_end_the_run(version):
    with pytest.raises(ActorFailure, match=f"version {version} is refused"):
        asyncio.run(simulate(Random(0), refused=version))


@pytest.mark.parametrize("every, probed", [(0, []), (1, [*range(9)]), (3, [0, 3, 6])])
def test_every_nth_version_is_verified(every, probed):
    mesh = asyncio.run(simulate(Random(0), verify_every=every))
    assert [version for version, probe in mesh.trainer.probed.items() if probe] == probed
