import re
from pathlib import Path

import pytest

from rlmesh.actors.config import RewardConfig
from rlmesh.algorithms.config import AlgorithmConfig
from rlmesh.errors import RecipeError
from rlmesh.models.config import TrainerConfig
from rlmesh.recipe import Recipe, RunConfig, check_recipe, load_recipe, recipe_yaml
from rlmesh.rollout.config import RolloutConfig

CONFIGS = Path(__file__).parents[1] / "configs"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def refused(tmp_path):
    """The problems of a recipe's text, one a line."""

    def load(text: str, *overrides: str) -> list[str]:
        with pytest.raises(RecipeError) as error:
            load_recipe(write(tmp_path / "recipe.yaml", text), overrides)
        return str(error.value).replace(str(tmp_path) + "/", "").splitlines()

    return load


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.name)
def test_the_recipes_that_come_with_rlmesh_are_valid(path):
    load_recipe(path)


def test_a_recipe_gives_plain_dataclasses(tmp_path):
    recipe = load_recipe(
        write(
            tmp_path / "r.yaml",
            """
            run: {name: mine, steps: 20}
            trainer: {optimizer: {lr: 2e-3, betas: [0.8, 0.9]}}
            reward: {function: reward_functions.takes_anything, args: {nested: {a: [1, 2]}}}
            warm_start: {steps: 3}
            placement: {job: process, hosts: {local: {gpus: 2}, far: {count: 2}}}
            """,
        )
    )
    assert type(recipe) is Recipe and type(recipe.trainer) is TrainerConfig
    assert recipe.run.dir == "runs/mine"
    assert recipe.trainer.optimizer.lr == 0.002 and type(recipe.trainer.optimizer.betas) is list
    assert recipe.reward.args == {"nested": {"a": [1, 2]}} and type(recipe.reward.args["nested"]) is dict
    assert recipe.warm_start.steps == 3
    assert recipe.placement.hosts["far"].count == 2 and recipe.placement.hosts["far"].gpus == 0


def test_an_empty_recipe_is_all_defaults(tmp_path):
    assert load_recipe(write(tmp_path / "r.yaml", "")) == check_recipe(Recipe())


def test_overrides_win_in_their_order(tmp_path):
    path = write(tmp_path / "r.yaml", "run: {steps: 5, seed: 1}\nalgorithm: {kl_coef: {from: 0.3, to: 0.01}}")
    recipe = load_recipe(
        path, ["run.steps=6", "run.steps=7", "algorithm.kl_coef.to=0", "model.tiny.words=[a,b]", "run.name=x y"]
    )
    assert (recipe.run.steps, recipe.run.seed, recipe.run.dir) == (7, 1, "runs/x y")
    assert recipe.algorithm.kl_coef == {"from": 0.3, "to": 0}
    assert recipe.model.tiny.words == ["a", "b"]
    assert load_recipe(path, ["algorithm.kl_coef=0.1"]).algorithm.kl_coef == 0.1


def test_a_part_is_switched_off_with_null(tmp_path):
    path = write(tmp_path / "r.yaml", "warm_start: {steps: 3}")
    assert load_recipe(path, ["warm_start=null"]).warm_start is None


def test_a_recipe_extends_another_relative_to_its_own_folder(tmp_path):
    (tmp_path / "base").mkdir()
    write(tmp_path / "base" / "root.yaml", "run: {name: root, steps: 5, seed: 3}\nmodel: {tiny: {words: [a, b]}}")
    write(tmp_path / "base" / "middle.yaml", "extends: root.yaml\nrun: {steps: 6}\nmodel: {tiny: {words: [c]}}")
    recipe = load_recipe(write(tmp_path / "top.yaml", "extends: base/middle.yaml\nrun: {name: top}"))
    assert (recipe.run.name, recipe.run.steps, recipe.run.seed, recipe.run.dir) == ("top", 6, 3, "runs/top")
    assert recipe.model.tiny.words == ["c"]  # lists are not joined


def test_a_saved_recipe_can_be_read_when_the_models_folder_is_gone(tmp_path):
    path = write(tmp_path / "saved.yaml", f"model: {{source: {tmp_path / 'gone'}}}")
    assert load_recipe(path).model.source == str(tmp_path / "gone")


def test_arguments_stay_with_the_code_that_they_are_for(tmp_path):
    write(
        tmp_path / "root.yaml",
        "reward: {args: {a: 1}}\nenv: {args: {rules: no_bonus, b: 1}}\neval: {name: '', args: {c: 1}}",
    )
    path = write(
        tmp_path / "top.yaml", "extends: root.yaml\nenv: {args: {b: 2}}\nreward: {function: reward_functions.raises}"
    )
    recipe = load_recipe(path, ["eval.args.total=16", "eval.name=blackjack_env.solver.View", "env.args.d=3"])
    assert recipe.reward.args == {}  # another function
    assert recipe.env.args == {"rules": "no_bonus", "b": 2, "d": 3}  # the same environment
    assert recipe.eval.args == {"total": 16}


def test_recipes_that_extend_each_other_are_refused(refused, tmp_path):
    write(tmp_path / "a.yaml", "extends: b.yaml")
    write(tmp_path / "b.yaml", "extends: a.yaml")
    assert refused("extends: a.yaml") == ["extends: a.yaml extends itself (recipe.yaml -> a.yaml -> b.yaml -> a.yaml)"]


def test_the_same_recipe_may_be_extended_by_two(tmp_path):
    write(tmp_path / "root.yaml", "run: {steps: 5}")
    for name in ("a", "b"):
        assert load_recipe(write(tmp_path / f"{name}.yaml", "extends: root.yaml")).run.steps == 5


def test_the_resolved_recipe_loads_again_as_it_is(tmp_path):
    recipe = load_recipe(
        CONFIGS / "blackjack.yaml", ["run.steps=7", "run.name=again", "placement.hosts={local: {}, more: {gpus: 2}}"]
    )
    saved = recipe_yaml(recipe)
    assert load_recipe(write(tmp_path / "saved.yaml", saved)) == recipe
    assert "extends" not in saved and "${" not in saved


def test_python_made_recipes_are_checked_the_same_way():
    recipe = check_recipe(Recipe(run=RunConfig(name="mine"), trainer=TrainerConfig(pack_length=512)))
    assert recipe.run.dir == "runs/mine"
    wrong = Recipe(
        run=RunConfig(steps="ten"), rollout=None, reward=RewardConfig(args=[1]), algorithm=AlgorithmConfig(loss=3.5)
    )
    with pytest.raises(RecipeError) as error:
        check_recipe(wrong)
    assert [line.split(":")[0] for line in str(error.value).splitlines()] == [
        "run.steps",
        "rollout",
        "reward.args",
        "algorithm.loss",
    ]
    with pytest.raises(RecipeError, match=r"rollout.group_size: 0 must be at least 1"):
        check_recipe(Recipe(rollout=RolloutConfig(group_size=0)))


def test_a_recipe_built_in_python_is_not_changed_by_the_check():
    recipe = Recipe()
    check_recipe(recipe)
    assert recipe == Recipe()


SHAPES = [
    ("run: {stepz: 5}", "run.stepz: unknown key; did you mean 'run.steps'?"),
    ("modle: {}", "modle: unknown key; did you mean 'model'?"),
    ("trainer: {optimizer: {learning: 1}}", "trainer.optimizer.learning: unknown key; known: lr, betas, eps"),
    (
        "placement: {hosts: {gpu: {gpu: 2}}}",
        "placement.hosts.gpu.gpu: unknown key; did you mean 'placement.hosts.gpu.gpus'?",
    ),
    (
        "placement: {actors: {trainer: {proc: 2}}}",
        "placement.actors.trainer.proc: unknown key; did you mean 'placement.actors.trainer.procs'?",
    ),
    ("warm_start: {step: 5}", "warm_start.step: unknown key; did you mean 'warm_start.steps'?"),
    ("5: x", "5: unknown key; known: run, model"),
    ("run: {steps: ten}", "run.steps: a whole number is needed, not 'ten'"),
    ("run: {steps: 1.5}", "run.steps: a whole number is needed, not 1.5"),
    ("run: {steps: true}", "run.steps: a whole number is needed, not True"),
    ("run: {steps: '5'}", "run.steps: a whole number is needed, not '5'"),
    ("run: {seed: }", "run.seed: a whole number is needed, not None"),
    ("run: {steps: [1]}", "run.steps: a whole number is needed, not [1]"),
    ("rollout: {temperature: hot}", "rollout.temperature: a number is needed, not 'hot'"),
    ("metrics: {console: 1}", "metrics.console: true or false is needed, not 1"),
    ("model: {tiny: {words: [10.]}}", "model.tiny.words[0]: text (in quotes) is needed, not 10.0"),
    ("model: {tiny: {words: hit}}", "model.tiny.words: a list is needed, not 'hit'"),
    ("trainer: {optimizer: {betas: [0.9, x]}}", "trainer.optimizer.betas[1]: a number is needed, not 'x'"),
    ("trainer: {optimizer: {betas: {a: 1}}}", "trainer.optimizer.betas: a list is needed, not {'a': 1}"),
    ("reward: {args: 5}", "reward.args: a mapping is needed, not 5"),
    ("run: 5", "run: keys are needed (name, seed, steps, dir, max_restarts, warn_after_s), not 5"),
    ("run:", "run: keys are needed (name, seed, steps, dir, max_restarts, warn_after_s), not None"),
    ("warm_start: 5", "warm_start: keys are needed (data, args, steps, batch_size, lr), not 5"),
    ("placement: {hosts: {gpu: 3}}", "placement.hosts.gpu: keys are needed (count, gpus), not 3"),
    ("extends: 5", "extends: the file name of one recipe is needed, not 5"),
]


@pytest.mark.parametrize("text, problem", SHAPES, ids=[text for text, _ in SHAPES])
def test_keys_and_types(refused, text, problem):
    [line] = refused(text)
    assert line.startswith(problem) and line.endswith("(in recipe.yaml)")


def test_every_wrong_key_and_type_is_shown_at_once_with_its_file(refused, tmp_path):
    write(tmp_path / "base.yaml", "trainer: {optimiser: {}}")
    assert refused("extends: base.yaml\nrun: {steps: ten, stepz: 1}", "model.sourc=x", "env.retries=many") == [
        "trainer.optimiser: unknown key; did you mean 'trainer.optimizer'? (in base.yaml)",
        "run.steps: a whole number is needed, not 'ten' (in recipe.yaml)",
        "run.stepz: unknown key; did you mean 'run.steps'? (in recipe.yaml)",
        "model.sourc: unknown key; did you mean 'model.source'?",
        "env.retries: a whole number is needed, not 'many'",
    ]


FILES = [
    ("run: {steps: 5, steps: 6}", r"recipe.yaml: not valid YAML: line 1: .*duplicate key steps"),
    ("run: {steps: 5", r"recipe.yaml: not valid YAML: line \d"),
    ("- a", r"recipe.yaml: a recipe is a mapping of keys, not a list"),
    ("extends: nowhere.yaml", r"nowhere.yaml: there is no such recipe"),
    ("run: {dir: 'x/${run.nam}'}", r"run.dir: .*run.nam"),
    ("run: {steps: '${run.name}'}", r"run.steps: .*'run'"),
]


@pytest.mark.parametrize("text, problem", FILES, ids=[text for text, _ in FILES])
def test_files(refused, text, problem):
    [line] = refused(text)
    assert re.match(problem, line)


OVERRIDES = [
    ("run.steps", "'run.steps': an override is key=value, for example run.steps=10"),
    ("=5", "'=5': an override is key=value"),
    ("run..steps=5", "'run..steps=5': an override is key=value"),
    ("run.steps=[1", "run.steps: cannot read the override 'run.steps=[1'"),
    ("run.stps=5", "run.stps: unknown key; did you mean 'run.steps'?"),
    ("run.steps=", "run.steps: a whole number is needed, not None"),
    ("run=5", "run: keys are needed"),
    ("run.steps.more=5", "run.steps: a whole number is needed, not {'more': 5}"),
    ("rollout.groups_per_step=0", "rollout.groups_per_step: 0 must be at least 1"),
]


@pytest.mark.parametrize("override, problem", OVERRIDES, ids=[override for override, _ in OVERRIDES])
def test_overrides(refused, override, problem):
    [line] = refused("run: {name: x}", override)
    assert line.startswith(problem)
