import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import reference
from spawning import IMPORTABLE, serve_policy, spawn_proc

from rlmesh.actors.config import EngineConfig, PolicyServerConfig
from rlmesh.actors.launch import policy_environment
from rlmesh.actors.policy_server import PolicyServer
from rlmesh.actors.service import Replica, Service
from rlmesh.errors import ActorFailure
from rlmesh.rollout.types import GenerateRequest
from rlmesh.weights.config import WeightsConfig

PROMPT = [6 + i % 12 for i in range(40)]  # longer than a block of the prefix cache
TOLERANCE = 5e-6


def asking(seed=0, n=1, max_tokens=8, prompt=PROMPT):
    return GenerateRequest(prompt, n=n, seed=seed, max_tokens=max_tokens)


async def update(policy, seed, scale=0.1):
    """Other weights, as the next version; returns transformers' model with the same."""
    model = reference.perturbed(policy.model_path, seed, scale)
    return model, await serve(policy, model)


async def serve(policy, model) -> int:
    """The model's weights, as the next version."""
    version = next(policy.versions)
    await policy.store.publish(version, reference.weights_of(model))
    await policy.service.fetch(version)
    return version


def distance(policy, model, sample, logprobs) -> np.ndarray:
    """Per token, how far logprobs are from transformers'."""
    expected = reference.logprobs(model, PROMPT, sample.tokens, policy.temperature)
    return np.abs(expected.numpy() - np.array(logprobs))


async def drift(policy, model) -> float:
    """The largest difference between the server's logprobs, sampled and scored, and transformers'."""
    [samples] = await policy.service.generate([asking(seed=11, n=8, max_tokens=16)])
    scored = await policy.service.score([PROMPT] * 8, [s.tokens for s in samples])
    assert [(s.shape, s.dtype) for s in scored] == [((len(s.tokens),), np.float32) for s in samples]
    pairs = [(s, found) for s, row in zip(samples, scored, strict=True) for found in (s.logprobs, row)]
    return max(distance(policy, model, sample, found).max() for sample, found in pairs)


@pytest.fixture(params=["policy", "cool_policy"])
def any_policy(request):
    return request.getfixturevalue(request.param)


async def test_logprobs_are_those_of_the_sampling_distribution_before_and_after_updates(any_policy):
    for seed in (1, 2):
        model, version = await update(any_policy, seed)
        assert await drift(any_policy, model) < TOLERANCE
        assert await any_policy.service.version() == version
        # The server is the only reader, so that what it has gone past is gone.
        assert await any_policy.store.versions() == [version]


async def test_every_sample_arrives_aligned_and_ended(any_policy):
    groups = await any_policy.service.generate([asking(seed=s, n=8, max_tokens=12) for s in range(32)])
    assert [len(samples) for samples in groups] == [8] * 32
    samples = [sample for group in groups for sample in group]
    for sample in samples:
        assert len(sample.tokens) == len(sample.logprobs)
        assert not any_policy.ends & set(sample.tokens[:-1])
        if sample.finish_reason == "stop":
            assert sample.tokens[-1] in any_policy.ends
        else:
            assert (sample.finish_reason, len(sample.tokens)) == ("length", 12)
            assert sample.tokens[-1] not in any_policy.ends
    # Every token that ends a sequence for this model does end some.
    assert {s.tokens[-1] for s in samples if s.finish_reason == "stop"} == any_policy.ends


async def test_sequences_as_long_as_the_model_takes_are_made_and_scored(any_policy):
    [[sample]] = await any_policy.service.generate([asking(prompt=[7] * 63, max_tokens=1)])
    [scored] = await any_policy.service.score([[7] * 63], [sample.tokens])
    np.testing.assert_allclose(scored, sample.logprobs, atol=TOLERANCE)


async def test_scores_of_a_whole_vocabulary_add_up(any_policy):
    size = json.loads((any_policy.model_path / "config.json").read_text())["vocab_size"]
    scores = await any_policy.service.score([PROMPT] * size, [[token] for token in range(size)])
    assert np.exp(scores).sum() == pytest.approx(1, abs=1e-5)


async def test_a_sample_depends_on_its_seed_and_place_alone(policy):
    [alone] = await policy.service.generate([asking(seed=3, n=2)])
    # More prompt tokens than one forward pass of the engine holds, and more sequences than it runs at the same time.
    others = [asking(seed=s, n=2, prompt=PROMPT[: 30 + s % 10]) for s in range(4, 400)]
    *_, beside = await policy.service.generate([*others, asking(seed=3, n=2)])
    assert [s.tokens for s in beside] == [s.tokens for s in alone]
    assert [s.logprobs for s in beside] == [s.logprobs for s in alone]


async def test_no_two_streams_are_the_same(policy):
    # Were the seeds given to vLLM as they are, sample i of request s would be sample i - 1 of request s + 1.
    groups = await policy.service.generate([asking(seed=s, n=4, max_tokens=16) for s in range(8)])
    assert len({tuple(sample.tokens) for group in groups for sample in group}) == 32


async def meet_an_update(policy):
    """Requests that an update meets; transformers' model of each version, and the samples."""
    for _ in range(5):  # on a machine that is busy with other things the requests may end before the update comes
        old, before = await update(policy, 3)
        new = reference.perturbed(policy.model_path, 4)  # takes longer than the requests
        # More than run at the same time, some of several samples, some short enough to have ended before.
        requests = [asking(seed=s, n=1 + s % 3, max_tokens=4 + s % 24) for s in range(400)]
        running = asyncio.create_task(policy.service.generate(requests))
        await asyncio.sleep(0.1)
        after = await serve(policy, new)
        groups = await running
        assert [len(group) for group in groups] == [request.n for request in requests]
        [[later]] = await policy.service.generate([requests[0]])
        assert set(later.versions) == {after}
        samples = [sample for group in groups for sample in group]
        if {sample.max_version for sample in samples} == {before, after}:
            break
    return {before: old, after: new}, samples


def check_versions(policy, models, samples):
    """Token by token: were they made by the weights that the versions say?"""
    for sample in samples:
        away = {version: distance(policy, model, sample, sample.logprobs) for version, model in models.items()}
        assert max(away[version][i] for i, version in enumerate(sample.versions)) < TOLERANCE
        assert sample.versions == sorted(sample.versions)
        assert len(sample.versions) == len(sample.tokens)
    # Or the update met none of them, or nobody could tell one version from the other.
    assert {sample.max_version for sample in samples} == set(models)
    assert max(away.values(), key=np.max).max() > 100 * TOLERANCE


async def test_each_token_that_an_update_meets_has_the_version_that_made_it(any_policy, request):
    models, samples = await meet_an_update(any_policy)
    check_versions(any_policy, models, samples)
    switched = sum(sample.min_version != sample.max_version for sample in samples)
    assert (switched > 0) == (request.node.callspec.params["any_policy"] == "policy")  # `wait` lets them finish first


@pytest.mark.slow
async def test_an_update_that_aborts_has_requests_begin_anew(untied):
    async for policy in serve_policy(untied, 1.0, {2}, WeightsConfig(pause="abort"), EngineConfig(), sleep=False):
        models, samples = await meet_an_update(policy)
        check_versions(policy, models, samples)
        assert all(sample.min_version == sample.max_version for sample in samples)


async def test_corrupted_weights_are_refused_and_the_old_ones_served_on(policy):
    model, version = await update(policy, 5)
    broken = next(policy.versions)
    await policy.store.publish(broken, reference.weights_of(reference.perturbed(policy.model_path, 6)))
    with open((await policy.store.manifest(broken)).parts[0].location.path, "r+b") as segment:
        segment.seek(1000)
        segment.write(b"\xff\xff\xff\xff")
    with pytest.raises(ActorFailure, match=f"version {broken} does not have the checksum"):
        await policy.service.fetch(broken)
    assert await policy.service.version() == version
    assert await drift(policy, model) < TOLERANCE
    await update(policy, 7)


async def test_weights_that_do_not_fit_are_refused_and_the_old_ones_served_on(cool_policy):
    model, version = await update(cool_policy, 5)
    weights = reference.weights_of(reference.perturbed(cool_policy.model_path, 6))
    headless, cut, more = dict(weights), dict(weights), dict(weights, surplus=weights["lm_head.weight"])
    del headless["lm_head.weight"]  # as a tied model's own state dict may be: vLLM would keep the old head
    cut["model.norm.weight"] = cut["model.norm.weight"][:-1]
    for wrong, tensor in ((headless, "lm_head.weight"), (cut, "model.norm.weight"), (more, "surplus")):
        refused = next(cool_policy.versions)
        await cool_policy.store.publish(refused, wrong)
        with pytest.raises(ActorFailure, match=f"version {refused} does not fit the model: {tensor}"):
            await cool_policy.service.fetch(refused)
    assert await cool_policy.service.version() == version
    assert await drift(cool_policy, model) < TOLERANCE


async def test_a_version_that_is_not_there_is_named(policy):
    with pytest.raises(ActorFailure, match="version 999 is not in the store"):
        await policy.service.fetch(999)


@pytest.mark.parametrize("victim", ["actor", "controller"])
async def test_no_process_outlives_the_actor_or_the_controller(untied, victim):
    env = {**os.environ, **IMPORTABLE}
    program = [sys.executable, "-m", "spawning", str(untied)]
    with subprocess.Popen(program, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as controller:
        pids = json.loads(next(line for line in controller.stdout if line.startswith('{"actor"')))
        family = [psutil.Process(pid) for pid in pids["family"]]
        assert {p.name() for p in family} >= {"VLLM::EngineCore"}
        actor = psutil.Process(pids["actor"])
        os.kill(actor.pid if victim == "actor" else controller.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs([actor, *family], timeout=10)
        controller.kill()
    assert not alive


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "complaint"),
    [
        ({"start_timeout_s": 0.5}, "vLLM was not ready within 0.5 s"),
        ({"request_timeout_s": 0.001}, "vLLM did not answer within 0.001 s"),
    ],
)
async def test_what_takes_too_long_is_named(untied, limit, complaint):
    config = PolicyServerConfig(**limit)
    procs = spawn_proc("late", policy_environment(config))
    actor = procs.spawn("late", PolicyServer, config, str(untied), 64, 1.0)
    with pytest.raises(ActorFailure, match=complaint):
        await Service("PolicyServer", [Replica(actor)], limit_s=120).setup()
    await procs.stop()


async def test_busy_intervals_tell_what_is_still_going_on(policy):
    await policy.service.busy()
    began = time.monotonic()
    running = asyncio.create_task(policy.service.generate([asking(seed=s, max_tokens=50) for s in range(200)]))
    await asyncio.sleep(0.1)
    [first] = await policy.service.busy()
    await running
    [second] = await policy.service.busy()
    assert began <= first[0] < first[1] == second[0] < second[1] <= time.monotonic()
    assert await policy.service.busy() == []


async def test_what_a_caller_has_given_up_is_aborted_and_nothing_else(cool_policy):
    [before] = await cool_policy.service.generate([asking(seed=3)])
    await cool_policy.service.sleep()  # so that both still wait
    given_up, other = (asyncio.create_task(cool_policy.service.generate([asking(seed=3)], name)) for name in "ab")
    await asyncio.sleep(0.2)
    await cool_policy.service.abort("a")
    with pytest.raises(ActorFailure, match="what a asked for was aborted"):
        await given_up
    assert not other.done()
    await cool_policy.service.wake_up()
    assert await other == [before]


async def test_a_sleeping_engine_serves_nothing_until_it_wakes(policy, cool_policy):
    [before] = await cool_policy.service.generate([asking(seed=3)])
    await cool_policy.service.sleep()
    waiting = asyncio.create_task(cool_policy.service.generate([asking(seed=3)]))
    with pytest.raises(ActorFailure, match="fetch needs an engine that is awake"):
        await cool_policy.service.fetch(0)
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await cool_policy.service.wake_up()
    assert await waiting == [before]
    with pytest.raises(ActorFailure, match=r"sleep needs policy\.sleep: true"):
        await policy.service.sleep()


@pytest.mark.parametrize(
    "prompt, options, complaint",
    [
        ([], {}, "a prompt has 0 tokens, and 1 to 63 can be served"),
        ([5] * 64, {}, "a prompt has 64 tokens, and 1 to 63 can be served"),
        ([5, 10**6], {}, "a prompt has token 1000000, which is none of the model's"),
        ([5, -1], {}, "a prompt has token -1, which is none of the model's"),
        ([5], {"n": 0}, "a request's n must be at least 1, not 0"),
        ([5], {"max_tokens": 0}, "a request's max_tokens must be at least 1, not 0"),
        ([5], {"seed": -1}, "a request's seed must be at least 0, not -1"),
    ],
)
async def test_what_the_model_cannot_be_asked_is_refused_and_the_server_lives_on(policy, prompt, options, complaint):
    request = GenerateRequest(prompt, **{"n": 1, "seed": 0, "max_tokens": 2, **options})
    with pytest.raises(ActorFailure, match=complaint):
        await policy.service.generate([request])
    if not options:
        with pytest.raises(ActorFailure, match=complaint):
            await policy.service.score([prompt], [[5]])
    [[completion]] = await policy.service.generate([GenerateRequest([5], n=1, seed=0, max_tokens=1)])
    assert len(completion.tokens) == 1


@pytest.mark.parametrize(
    "completions, complaint",
    [
        ([[]], "a completion has 0 tokens, and 1 to 62"),
        ([[5] * 63], "a completion has 63 tokens, and 1 to 62"),
        ([[5], [5]], "1 prompts cannot have 2"),
    ],
)
async def test_completions_that_cannot_be_scored_are_refused(policy, completions, complaint):
    with pytest.raises(ActorFailure, match=complaint):
        await policy.service.score([[5, 6]], completions)


async def test_a_model_that_does_not_score_as_the_trainer_did_is_never_heard_of(untied):
    serving = serve_policy(untied, 1.0, set(), WeightsConfig(), EngineConfig(), sleep=False)
    policy = await anext(serving)
    model = reference.perturbed(untied, 1)
    tokens = list(range(4, 24))
    probe = {
        "tokens": tokens,
        "logprobs": reference.logprobs(model, tokens[:1], tokens[1:]).tolist(),
        "dtype": "float32",
    }
    await policy.store.publish(0, reference.weights_of(model), probe)
    await policy.service.fetch(0)  # it does score so
    assert await drift(policy, model) < TOLERANCE
    running = asyncio.create_task(policy.service.generate([asking(seed=s, n=8, max_tokens=24) for s in range(64)]))
    other = reference.perturbed(untied, 2)
    await policy.store.publish(
        1, reference.weights_of(other), probe
    )  # the bytes are what was published, the model is not
    stopped = "stopped, because the logprobs of a fixed sequence under version 1 are .* nats from the trainer's"
    with pytest.raises(ActorFailure, match=stopped):
        await policy.service.fetch(1)
    with pytest.raises(ActorFailure, match="stopped, because"):
        await running
    with pytest.raises(ActorFailure, match="stopped, because"):
        await policy.service.generate([asking()])
    await policy.store.stop()
    await policy.procs.stop()
