import numpy as np
import pytest

from rlmesh import Recipe
from rlmesh.algorithms.grpo import minibatches, task
from rlmesh.recipe import check_recipe
from rlmesh.rollout.batch import Batch


@pytest.mark.parametrize("samples, parts", [(1, 1), (3, 3), (10, 4)])
def test_every_sample_is_in_one_minibatch_and_none_is_empty(samples, parts):
    recipe = check_recipe(Recipe())
    recipe.algorithm.minibatches = 4
    batch = Batch.from_samples([[number, 1, 2] for number in range(samples)], [[False, True, True]] * samples)
    made = minibatches(batch, recipe, step=0)
    assert len(made) == parts
    first_tokens = [part.tokens[start] for part in made for start in part.offsets[:-1]]
    assert sorted(first_tokens) == list(range(samples)) and np.ptp([part.num_samples for part in made]) <= 1


def test_every_group_and_every_replacement_of_one_draws_from_streams_of_its_own():
    recipe = check_recipe(Recipe())
    places = [(step, index, attempt) for step in range(10) for index in range(10) for attempt in range(10)]
    made = [task(recipe, *place) for place in places]
    assert len({each.seed for each in made}) == len({each.shared_seed for each in made}) == 1000
    assert [task(recipe, *place) for place in places] == made
