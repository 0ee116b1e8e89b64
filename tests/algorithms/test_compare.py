import numpy as np
import orjson
import pytest

from rlmesh import Recipe
from rlmesh.algorithms.config import MismatchConfig
from rlmesh.algorithms.mismatch import compare, served_logprobs
from rlmesh.errors import RLMeshError
from rlmesh.metrics.console import Console
from rlmesh.recipe import RunConfig, check_recipe
from rlmesh.rollout.batch import Batch
from rlmesh.rollout.types import GenerateRequest
from rlmesh.run import Run
from rlmesh.run_directory import RunDirectory


async def sampled(policy, version):
    """Two completions of one prompt, the second with a token between that was not sampled, made by `version`."""
    [[first, second]] = await policy.service.generate([GenerateRequest([6, 7, 8], n=2, seed=3, max_tokens=4)])
    masks = [[False] * 3 + [True] * len(c.tokens) for c in (first, second)]
    masks[1][4] = False
    rows = zip((first, second), masks, strict=True)
    versions = [[version if masked else -1 for masked in mask] for mask in masks]
    logprobs = [np.where(mask, [0.0] * 3 + c.logprobs, 0.0) for c, mask in rows]
    return Batch.from_samples([[6, 7, 8, *c.tokens] for c in (first, second)], masks, logprobs, versions=versions)


async def test_tokens_of_the_version_are_taken_as_sampled(policy):
    batch = await sampled(policy, version=4)
    batch.versions[4] = 3
    index, logprobs = await served_logprobs(policy.service, batch, version=4, sequences=64, temperature=1.0)
    expected = [place for place in np.flatnonzero(batch.loss_mask) if place != 4]
    assert index.tolist() == expected
    np.testing.assert_array_equal(logprobs, batch.logprobs[expected])


@pytest.mark.parametrize("sequences", [1, 64])
async def test_where_older_weights_made_all_tokens_they_are_scored_again(policy, sequences):
    batch = await sampled(policy, version=3)
    index, logprobs = await served_logprobs(policy.service, batch, version=4, sequences=sequences, temperature=1.0)
    end = batch.offsets[min(sequences, 2)]
    assert index.tolist() == np.flatnonzero(batch.loss_mask[:end]).tolist()
    np.testing.assert_allclose(logprobs, batch.logprobs[index], atol=5e-6)  # the weights are the same as then


@pytest.mark.parametrize("read, tokens", [(2, 0), (3, 1), (6, 1), (7, 2), (12, 3)])
async def test_at_other_temperatures_no_more_is_scored_again_than_may_be_read(cool_policy, monkeypatch, read, tokens):
    """Each token costs what is before it: 3, 4, 5 and more tokens here."""
    monkeypatch.setattr("rlmesh.algorithms.mismatch._MOST_PREFILLED", read)
    [[sample]] = await cool_policy.service.generate([GenerateRequest([6, 7, 8], n=1, seed=8, max_tokens=4)])
    count = len(sample.tokens)
    batch = Batch.from_samples(
        [[6, 7, 8, *sample.tokens]],
        [[False] * 3 + [True] * count],
        [np.array([0.0] * 3 + sample.logprobs)],
        versions=[[-1] * 3 + [3] * count],
    )
    index, logprobs = await served_logprobs(cool_policy.service, batch, version=4, sequences=64, temperature=0.7)
    assert count > 2 and index.tolist() == [3, 4, 5][:tokens]
    np.testing.assert_allclose(logprobs, batch.logprobs[index], atol=5e-6)


async def test_nothing_is_scored_again_where_the_recipe_says_so(policy):
    index, _ = await served_logprobs(
        policy.service, await sampled(policy, version=3), version=4, sequences=0, temperature=1.0
    )
    assert not len(index)


@pytest.fixture
def run(tmp_path):
    recipe = check_recipe(Recipe(run=RunConfig(name="mismatch", dir=str(tmp_path / "run"))))
    directory = RunDirectory(tmp_path / "run")
    directory.begin(recipe)
    run = Run(recipe, directory, Console(False))
    yield run
    run.close()
    directory.close()


def batch():
    mask = np.array([False, True, True])
    return Batch(np.array([5, 6, 7]), np.array([0, 3]), mask, np.float32([0, -1, -2]), versions=np.array([-1, 0, 0]))


def test_beyond_the_limit_the_run_ends_and_the_tokens_are_saved(run):
    served, trained = (np.array([1, 2]), np.float32([-1, -2])), np.float32([0, -1.0, -2.5])
    compare(run, 3, batch(), served, trained, MismatchConfig(stop_above=0.6))
    with pytest.raises(
        RLMeshError, match=r"algorithm\.mismatch\.stop_above: .*token 7.*1 of 2 tokens of step 3"
    ) as error:
        compare(run, 3, batch(), served, trained, MismatchConfig(stop_above=0.4))
    path = run.directory.path / "mismatch" / "step_3.jsonl"
    assert str(path) in str(error.value)
    [row] = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert row == {"token": 7, "trainer_logprob": -2.5, "policy_server_logprob": -2.0, "before": [5, 6]}


def test_without_a_limit_nothing_ends_the_run(run):
    compare(run, 0, batch(), (np.array([1]), np.float32([-1])), np.float32([0, -9, -2]), MismatchConfig())
    assert not (run.directory.path / "mismatch").exists()
