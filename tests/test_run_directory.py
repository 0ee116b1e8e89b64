import subprocess
import sys

import orjson
import pytest
from episodes import group

from rlmesh.errors import RecipeError, RLMeshError
from rlmesh.models.config import ModelConfig
from rlmesh.recipe import Recipe, RunConfig, check_recipe, load_recipe
from rlmesh.run_directory import RunDirectory


def make_recipe(path, **options):
    return check_recipe(Recipe(run=RunConfig(name="mine", dir=str(path), **options)))


@pytest.fixture
def recipe(tmp_path):
    return make_recipe(tmp_path / "run")


@pytest.fixture
def directory(tmp_path, recipe):
    directory = RunDirectory(tmp_path / "run")
    directory.begin(recipe)
    yield directory
    directory.close()


async def save(directory, step, keep=10):
    async with directory.checkpoints.save(step, keep) as folder:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(f'{{"step": {step}}}')


def refuse(warning):
    raise AssertionError(warning)


async def test_a_run_begins_with_its_resolved_recipe(directory, recipe):
    assert load_recipe(directory.path / "recipe.yaml") == recipe
    assert {"logs", "rollouts", "checkpoints", "eval", "plots"} <= {path.name for path in directory.path.iterdir()}


async def test_a_directory_that_holds_a_run_is_refused(directory, recipe):
    directory.close()
    again = RunDirectory(directory.path)
    with pytest.raises(
        RLMeshError, match=r"run.dir: .*/run holds a run already; go on with it \(--resume\), choose another"
    ):
        again.begin(recipe)
    assert load_recipe(directory.path / "recipe.yaml") == recipe


async def test_a_refused_run_does_not_keep_the_directory_locked(directory, recipe):
    await save(directory, 5)
    directory.close()
    with pytest.raises(RLMeshError):
        RunDirectory(directory.path).begin(recipe)
    resumed = RunDirectory(directory.path)
    assert resumed.resume(recipe, refuse)[0] == 5
    resumed.close()


async def test_another_process_cannot_use_it_at_the_same_time(directory):
    await save(directory, 5)
    code = (
        "import sys; from pathlib import Path; from rlmesh.run_directory import RunDirectory;"
        "from rlmesh.recipe import load_recipe;"
        "path = Path(sys.argv[1]); RunDirectory(path).resume(load_recipe(path / 'recipe.yaml'), print)"
    )
    command = [sys.executable, "-c", code, str(directory.path)]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert "another process is using" in refused.stderr.splitlines()[-1]
    directory.close()
    subprocess.run(command, check=True)


async def test_a_checkpoint_appears_whole_and_latest_names_it(directory):
    root = directory.path / "checkpoints"
    async with directory.checkpoints.save(3, keep=2) as folder:
        (folder / "weights").write_text("x")
        assert directory.checkpoints.all() == []
        assert not (root / "step_3").exists() and not (root / "latest").exists()
    assert directory.checkpoints.all() == [(3, root / "step_3")]
    assert (root / "latest").read_text() == "step_3\n"
    assert (root / "step_3" / "weights").read_text() == "x"


async def test_a_checkpoint_that_fails_half_way_is_not_one(directory):
    await save(directory, 3)
    with pytest.raises(OSError):
        async with directory.checkpoints.save(6, keep=2) as folder:
            (folder / "half").write_text("x")
            raise OSError("disk full")
    assert {path.name for path in (directory.path / "checkpoints").iterdir()} == {
        "step_3",
        "latest",
    }  # space is free again
    assert [step for step, _ in directory.checkpoints.all()] == [3]
    assert (directory.path / "checkpoints" / "latest").read_text() == "step_3\n"
    await save(directory, 6)  # what the failure left behind is not in the way
    assert not (directory.path / "checkpoints" / "step_6" / "half").exists()


async def test_the_newest_checkpoints_are_kept_by_number(directory):
    for step in (8, 9, 10, 100):
        await save(directory, step, keep=2)
    assert [step for step, _ in directory.checkpoints.all()] == [10, 100]


async def test_foreign_folders_are_no_checkpoints(directory):
    await save(directory, 3)
    (directory.path / "checkpoints" / "step_3_backup").mkdir()
    (directory.path / "checkpoints" / "step_9").write_text("a file")
    assert [step for step, _ in directory.checkpoints.all()] == [3]


async def test_episodes_are_written_one_a_line(directory):
    played = group([1.0, -1.0, None], step=4, index=2, version=3)
    played.episodes[0].advantage = 0.5
    played.episodes[1].metadata = {"regret": 0.25}
    directory.write_rollouts(4, [played])
    rows = [orjson.loads(line) for line in (directory.path / "rollouts" / "step_4.jsonl").read_bytes().splitlines()]
    assert [(row["group"], row["episode"], row["reward"]) for row in rows] == [(2, 0, 1.0), (2, 1, -1.0), (2, 2, None)]
    assert rows[0]["advantage"] == 0.5 and rows[0]["outcome"] == "ok" and rows[1]["metadata"] == {"regret": 0.25}
    [turn] = rows[0]["turns"]
    assert turn == {
        "observation": "observation",
        "prompt": [5, 6],
        "action": "action",
        "reward": 0.0,
        "tokens": [7, 2],
        "logprobs": [-0.1, -0.2],
        "versions": [3, 3],
        "finish_reason": "stop",
    }


async def test_resume_drops_what_came_after_the_checkpoint(directory, tmp_path):
    await save(directory, 2)
    (directory.path / "checkpoints" / ".step_4.partial").mkdir()
    rows = b"".join(orjson.dumps({"step": step, "reward/mean": 0.1}) + b"\n" for step in range(4))
    (directory.path / "metrics.jsonl").write_bytes(rows + b'{"step": 4, "rew')  # killed while writing
    for step in range(4):
        directory.write_rollouts(step, [group([1.0])])
    directory.close()

    longer = make_recipe(tmp_path / "run", steps=500)
    resumed = RunDirectory(directory.path)
    step, folder = resumed.resume(longer, refuse)
    assert (step, folder.name) == (2, "step_2")
    kept = [orjson.loads(line)["step"] for line in (directory.path / "metrics.jsonl").read_bytes().splitlines()]
    assert kept == [0, 1]
    assert {path.name for path in (directory.path / "rollouts").iterdir()} == {"step_0.jsonl", "step_1.jsonl"}
    assert not (directory.path / "checkpoints" / ".step_4.partial").exists()
    assert load_recipe(directory.path / "recipe.yaml") == longer
    resumed.close()


@pytest.mark.parametrize(
    "change, key", [({"model": ModelConfig(max_length=64)}, "model"), ({"run": RunConfig(seed=9)}, "run.seed")]
)
async def test_a_resumed_run_keeps_its_model_and_seed(directory, change, key):
    await save(directory, 2)
    directory.close()
    with pytest.raises(RecipeError, match=rf"^{key}: it is not what .*/run was begun with"):
        RunDirectory(directory.path).resume(check_recipe(Recipe(**change)), refuse)


async def test_a_run_without_a_checkpoint_begins_anew(directory, recipe, tmp_path):
    directory.write_rollouts(0, [group([1.0])])
    directory.close()
    for path in (directory.path, tmp_path / "new"):
        begun = RunDirectory(path)
        assert begun.resume(recipe, refuse) is None
        assert load_recipe(path / "recipe.yaml") == recipe
        assert not list((path / "rollouts").iterdir())
        begun.close()


async def test_a_run_is_not_resumed_to_an_earlier_step(directory, tmp_path):
    await save(directory, 9)
    directory.close()
    with pytest.raises(RecipeError, match=r"run.steps: .*/run has a checkpoint of step 9, after 5"):
        RunDirectory(directory.path).resume(make_recipe(tmp_path / "run", steps=5), refuse)
    assert directory.checkpoints.all()


def truncate(folder):
    (folder / "model" / "config.json").write_text("")


def flip(folder):
    content = (folder / "model" / "config.json").read_bytes()
    (folder / "model" / "config.json").write_bytes(content.replace(b"step", b"stap"))


def remove(folder):
    (folder / "model" / "config.json").unlink()


def forget_contents(folder):
    (folder / "contents.json").write_text("{")


def scramble_contents(folder):
    (folder / "contents.json").write_text("[1]")


@pytest.mark.parametrize(
    "damage, what",
    [
        (truncate, "model/config.json is not what was written"),
        (flip, "model/config.json is not what was written"),
        (remove, "model/config.json: No such file"),
        (forget_contents, "contents.json cannot be read"),
        (scramble_contents, "contents.json is no list of files"),
    ],
)
async def test_a_damaged_checkpoint_is_passed_over(directory, recipe, tmp_path, damage, what):
    for step in (2, 4, 6):
        await save(directory, step)
    for step in (4, 6):
        damage(directory.path / "checkpoints" / f"step_{step}")
    with pytest.raises(RLMeshError, match=f"step_6 is damaged: {what}"):
        directory.export(tmp_path / "out")
    directory.close()
    resumed, warnings = RunDirectory(directory.path), []
    assert resumed.resume(recipe, warnings.append)[0] == 2
    assert ["step_6 is damaged" in warnings[0], "step_4 is damaged" in warnings[1]] == [True, True]
    names = {path.name for path in (directory.path / "checkpoints").iterdir()}
    assert names == {"step_2", "damaged_step_4", "damaged_step_6", "latest"}  # nothing is thrown away
    assert all(what in warning for warning in warnings)
    assert [step for step, _ in resumed.checkpoints.all()] == [2]  # their steps are made again
    resumed.close()


async def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_anew(directory, recipe):
    for step in (2, 4):
        await save(directory, step)
        truncate(directory.path / "checkpoints" / f"step_{step}")
    directory.close()
    resumed = RunDirectory(directory.path)
    with pytest.raises(
        RLMeshError, match=r"no checkpoint is whole \(.*step_4 is damaged: .*step_2 is damaged: .*; to begin anew"
    ):
        resumed.resume(recipe, refuse)
    assert [step for step, _ in directory.checkpoints.all()] == [2, 4]


async def test_a_resumed_run_that_cannot_start_forgets_nothing(directory, recipe):
    (directory.path / "metrics.jsonl").write_text('{"step": 0}\n')
    directory.close()
    resumed = RunDirectory(directory.path)
    before = {path.name for path in directory.path.iterdir()}
    assert resumed.resume(recipe, refuse) is None
    resumed.forget()
    resumed.close()
    assert {path.name for path in directory.path.iterdir()} == before


async def test_the_reference_is_whole_or_not_there(directory):
    with pytest.raises(OSError):
        async with directory.save_reference() as folder:
            (folder / "model").mkdir()
            raise OSError("disk full")
    assert not directory.reference.exists()
    for content in ("first", "second"):
        async with directory.save_reference() as folder:
            (folder / "model").write_text(content)
        assert (directory.reference / "model").read_text() == content


async def test_export_copies_the_model_of_the_newest_or_a_named_checkpoint(directory, tmp_path, monkeypatch):
    await save(directory, 9)
    await save(directory, 10)
    assert directory.export(tmp_path / "out" / "newest") == 10
    assert (tmp_path / "out" / "newest" / "config.json").read_text() == '{"step": 10}'
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert directory.export(tmp_path / "empty" / "inner", step=9) == 9
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["inner"]


async def test_export_overwrites_nothing(directory, tmp_path):
    await save(directory, 9)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(RLMeshError, match="out is not empty, and nothing is overwritten"):
        directory.export(tmp_path / "out")
    with pytest.raises(RLMeshError, match="precious is not empty"):
        directory.export(tmp_path / "out" / "precious")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


async def test_export_names_what_is_missing(directory, tmp_path):
    with pytest.raises(RLMeshError, match="has no checkpoint yet"):
        directory.export(tmp_path / "out")
    await save(directory, 9)
    with pytest.raises(RLMeshError, match="has no checkpoint of step 3; it has 9"):
        directory.export(tmp_path / "out", step=3)
    with pytest.raises(RLMeshError, match="is not a run directory"):
        RunDirectory(tmp_path).export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_came_to_nothing_leaves_its_logs_and_what_was_there_before(tmp_path, recipe):
    (tmp_path / "run" / "eval").mkdir(parents=True)
    (tmp_path / "run" / "eval" / "mine.txt").write_text("x")
    directory = RunDirectory(tmp_path / "run")
    directory.begin(recipe)
    (directory.path / "metrics.jsonl").write_text("{}")
    (directory.path / "logs" / "trainer_0.log").write_text("why")
    directory.forget()
    directory.close()
    left = {str(path.relative_to(directory.path)) for path in directory.path.rglob("*") if path.is_file()}
    assert left == {"eval/mine.txt", "logs/trainer_0.log", ".lock"}
    directory.begin(recipe)
    directory.close()


def test_an_actors_last_words_are_the_end_of_its_log_without_frames(directory):
    lines = [
        *map(str, range(20)),
        "Traceback (most recent call last):",
        '  File "x.py", line 1',
        "    ^^^^",
        "ValueError: why",
    ]
    (directory.path / "logs" / "trainer_0.log").write_text("\n".join(lines))
    assert directory.last_words("trainer_0").split() == [*map(str, range(11, 20)), "ValueError:", "why"]
    assert directory.last_words("reward_0") == directory.last_words("") == ""
