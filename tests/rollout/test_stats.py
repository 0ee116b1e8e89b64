from episodes import group, turn

from rlmesh.rollout.stats import rollout_metrics


def test_groups_that_mix_tasks_are_counted():
    mixed = group([1.0, 0.0])
    mixed.episodes[1].turns = [turn([5, 7], [7, 2])]
    mixed.episodes[1].turns[0].observation = "another task"
    assert rollout_metrics([group([1.0, 0.0]), mixed], version=0).reduce()["groups/mixed"] == 0.5
