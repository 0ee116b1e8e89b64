"""What a person is told when the work fails around the time of a death."""

import asyncio

import pytest

from rlmesh.errors import ActorDied, ActorFailure, RecipeError
from rlmesh.mesh import supervision
from rlmesh.mesh.supervision import Supervision


class Failure:
    """What Monarch says of a process that died."""

    def __init__(self, mesh_name: str):
        self.mesh_name = mesh_name

    def report(self) -> str:
        return "it exited"


async def work(heard: Supervision, name: str, error: Exception, after_s: float = 0.0) -> None:
    heard._on_failure(Failure(f"{name}-1"))
    await asyncio.sleep(after_s)
    raise error


@pytest.mark.parametrize("handled", [False, True])
async def test_an_error_that_follows_a_death_is_told_as_the_death_with_the_error_as_its_cause(handled):
    error = ActorFailure("the buffer waited in vain")
    with (
        Supervision(lambda death: handled) as heard,
        pytest.raises(ActorDied, match="trainer_0: its process died") as told,
    ):
        await heard.guard(work(heard, heard.name("trainer_0"), error, after_s=0.1))
    assert told.value.actor == "trainer_0"
    assert told.value.__cause__ is error or not handled


async def test_an_error_long_after_a_death_is_told_as_it_is(monkeypatch):
    monkeypatch.setattr(supervision, "_FOLLOWS_S", 0.05)
    with Supervision(lambda death: True) as heard, pytest.raises(ActorFailure, match="a user's own"):
        await heard.guard(work(heard, heard.name("trainer_0"), ActorFailure("a user's own"), after_s=0.2))


async def test_an_error_of_the_recipe_is_never_told_as_a_death():
    with Supervision(lambda death: True) as heard, pytest.raises(RecipeError, match=r"algorithm\.loss"):
        await heard.guard(work(heard, heard.name("trainer_0"), RecipeError("algorithm.loss: it failed"), after_s=0.1))


async def test_nobody_hears_of_what_was_forgotten():
    with Supervision() as heard, pytest.raises(ActorFailure, match="its own"):
        name = heard.name("reward_0")
        heard.forget(name)
        await heard.guard(work(heard, name, ActorFailure("its own"), after_s=0.1))
