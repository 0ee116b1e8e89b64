"""Code that a recipe names: whatever goes wrong in it is said with the key that names it."""

import pytest

from rlmesh.errors import ActorFailure, RecipeError
from rlmesh.evals import EvalReport, evaluate, resolve_evaluator
from rlmesh.imports import import_path, running


@pytest.mark.parametrize(
    "path, complaint",
    [
        ("nowhere.f", "there is no module 'nowhere'"),
        ("reward_functions.nothing", "module 'reward_functions' has no 'nothing'"),
        ("exiting_module.f", "SystemExit: not today"),
        ("f", "is not an import path"),
    ],
)
def test_what_cannot_be_imported_names_the_key(path, complaint):
    with pytest.raises(RecipeError, match=rf"^a\.key: .*{complaint}"):
        import_path(path, "a.key")


@pytest.mark.parametrize("error", [KeyError("total"), SystemExit("no more")])
def test_what_fails_while_it_runs_names_the_key(error):
    complaint = rf"^a\.key: mine\.f failed: {type(error).__name__}: .*{error.args[0]}"
    with pytest.raises(RecipeError, match=complaint), running("mine.f", "a.key"):
        raise error


def test_an_actors_failure_stays_what_it_is():
    with pytest.raises(ActorFailure, match=r"^PolicyServer: gone$"), running("mine.f", "a.key"):
        raise ActorFailure("PolicyServer: gone")


class GivesNothing:
    def __init__(self, word: str = ""):
        self._word = word

    async def evaluate(self, answer_logprobs):
        return EvalReport({}, {}) if self._word else None


async def test_an_evaluator_of_ones_own():
    name = f"{__name__}.GivesNothing"
    with pytest.raises(RecipeError, match=r"eval\.args: .*GivesNothing failed: TypeError: .*'words'"):
        resolve_evaluator(name, {"words": 1})
    with pytest.raises(RecipeError, match=r"eval\.name: .* an evaluation returns an EvalReport, not None"):
        await evaluate(resolve_evaluator(name, {}), name, None)
    assert (await evaluate(resolve_evaluator(name, {"word": "good"}), name, None)).metrics == {}
