import subprocess
import sys
from pathlib import Path

import pytest
from conftest import tiny_model
from episodes import group, turn

from rlmesh.cli import main
from rlmesh.losses.advantages import group_mean
from rlmesh.recipe import Recipe, RunConfig, check_recipe, load_recipe
from rlmesh.rollout.collate import assign_advantages
from rlmesh.rollout.types import Episode, Outcome
from rlmesh.run_directory import RunDirectory

BLACKJACK = str(Path(__file__).parents[1] / "configs" / "blackjack.yaml")


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return stop.value.code or 0


def test_dry_run_prints_the_resolved_recipe_and_the_placement(capsys, tmp_path):
    assert exit_code("run", BLACKJACK, "run.name=tried", "--dry-run", f"run.dir={tmp_path}/${{run.name}}") == 0
    text, table = capsys.readouterr().out.split("placement (local job)")
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(text.rstrip())
    assert load_recipe(resolved) == load_recipe(BLACKJACK, ["run.name=tried", f"run.dir={tmp_path}/tried"])
    for actor in ("policy", "trainer", "replay_buffer", "reward", "rollout", "ref_model", "env"):
        assert actor in table
    assert not (tmp_path / "tried").exists()  # nothing was started


def test_dry_run_shows_every_replica_with_its_gpus(capsys, tmp_path):
    (tmp_path / "gpu.yaml").write_text(
        """
        placement:
          job: process
          hosts: {local: {count: 2}, gpu: {gpus: 6}}
          actors: {policy: {hosts: gpu, replicas: 2, gpus: 2, threads: 3}, trainer: {hosts: gpu, procs: 2, gpus: 1}, rollout: {replicas: 2}}
        trainer: {parallelism: {data_parallel_shard: 2}}
        """
    )
    assert exit_code("run", str(tmp_path / "gpu.yaml"), "--dry-run") == 0
    table = capsys.readouterr().out.split("placement (process job)")[1]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    assert rows[:3] == [
        ["policy", "0", "gpu[0]", "1", "0,1", "3"],
        ["policy", "1", "gpu[0]", "1", "2,3", "3"],
        ["trainer", "0", "gpu[0]", "2", "4 5", "1"],
    ]
    assert [row[0] for row in rows[3:]] == ["replay_buffer", "reward", "rollout", "rollout", "env"]
    assert [row[2] for row in rows[5:7]] == ["local[0]", "local[1]"]


@pytest.mark.parametrize("module", ["rlmesh.run", "rlmesh.cli"])
def test_dry_run_imports_nothing_heavy(module):
    code = f"""
import runpy, sys
try:
    if {module!r} == "rlmesh.run":
        sys.argv = ["run", {BLACKJACK!r}, "--dry-run"]
        runpy.run_module("rlmesh.run", run_name="__main__")
    else:
        from rlmesh.cli import main
        main(["run", {BLACKJACK!r}, "--dry-run"])
except SystemExit as stop:
    assert not stop.code, stop.code
print(sorted({{"torch", "vllm", "monarch", "transformers"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments, lines",
    [
        (["nowhere.yaml"], ["rlmesh: nowhere.yaml: there is no such recipe"]),
        ([BLACKJACK, "run.stpes=5"], ["rlmesh: run.stpes: unknown key; did you mean 'run.steps'?"]),
        (
            [BLACKJACK, "run.steps=0", "rollout.group_size=0"],
            ["rlmesh: run.steps: 0 must be at least 1", "rollout.group_size: 0 must be at least 1"],
        ),
    ],
)
def test_a_wrong_recipe_ends_with_2_and_sentences(capsys, arguments, lines):
    assert exit_code("run", *arguments) == 2
    out = capsys.readouterr()
    assert out.err.splitlines() == lines and out.out == ""


def test_the_command_itself_prints_no_traceback():
    done = subprocess.run([sys.executable, "-m", "rlmesh.run", "nowhere.yaml"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "rlmesh: nowhere.yaml: there is no such recipe\n")


def test_a_directory_that_holds_a_run_ends_with_1(capsys, tmp_path):
    recipe = check_recipe(Recipe(run=RunConfig(dir=str(tmp_path))))
    directory = RunDirectory(tmp_path)
    directory.begin(recipe)
    directory.close()
    assert exit_code("run", BLACKJACK, f"run.dir={tmp_path}") == 1
    assert capsys.readouterr().err.startswith(f"rlmesh: run.dir: {tmp_path} holds a run already")


async def test_export(capsys, tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.begin(check_recipe(Recipe(run=RunConfig(dir=str(tmp_path / "run")))))
    for step in (5, 10):
        async with directory.checkpoints.save(step, keep=2) as folder:
            (folder / "model").mkdir()
            (folder / "model" / "config.json").write_text(str(step))
    directory.close()
    assert exit_code("export", str(tmp_path / "run"), str(tmp_path / "out")) == 0
    assert (tmp_path / "out" / "config.json").read_text() == "10"
    assert "after 10 steps" in capsys.readouterr().out
    assert exit_code("export", str(tmp_path / "run"), str(tmp_path / "five"), "--step", "5") == 0
    assert (tmp_path / "five" / "config.json").read_text() == "5"
    assert exit_code("export", str(tmp_path / "run"), str(tmp_path / "out")) == 1
    assert capsys.readouterr().err == f"rlmesh: {tmp_path / 'out'} is not empty, and nothing is overwritten\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "nowhere is not a run directory; to evaluate a model, name a recipe: --recipe RECIPE"),
        (["nowhere", "--recipe", BLACKJACK], "model.source: there is no model folder 'nowhere'"),
        (["run"], "run has no checkpoint yet"),
    ],
)
def test_eval_of_what_is_not_there(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory(Path("run"))
    directory.begin(check_recipe(Recipe(run=RunConfig(dir="run"))))
    directory.close()
    assert exit_code("eval", *arguments) in (1, 2)
    assert capsys.readouterr().err.startswith(f"rlmesh: {message}")


def test_rollouts(capsys, tmp_path):
    directory = RunDirectory(tmp_path)
    directory.begin(check_recipe(Recipe(run=RunConfig(dir=str(tmp_path)))))
    directory.close()
    assert exit_code("rollouts", str(tmp_path)) == 1
    assert capsys.readouterr().err.startswith(f"rlmesh: {tmp_path} has no episodes")
    groups = [group([-1.0, 1.0], index=index) for index in range(3)]
    prompt = [4, 5, 6, 7, 8] * 10
    groups[2] = group([0.0, 1.0], index=2, turns=[turn(prompt, [9, 2]), turn([*prompt, 9, 2, 5], [10, 2], version=3)])
    groups[0].episodes[1] = Episode(id="", index=1, outcome=Outcome.TIMEOUT, metadata={"error": "no answer to a step"})
    assign_advantages(groups, group_mean)
    tiny_model(tmp_path / "model")
    directory.write_rollouts(7, groups)
    assert exit_code("rollouts", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "step 7" in shown and "1 more group;" in shown and "group 2" not in shown
    assert "group 0: 1 of 2 episodes scored, reward -1.000" in shown
    assert "episode 1 | reward none | advantage none | timeout" in shown and "no answer to a step" in shown
    assert "episode 1 | reward +1.000 | advantage +1.000 | ok" in shown
    assert exit_code("rollouts", str(tmp_path), "--group", "2") == 0
    shown = capsys.readouterr().out
    assert "group 2: 2 of 2" in shown and "group 0" not in shown and "version 3, reward" in shown
    assert shown.count("(shown above)") == 1  # one long prompt for both episodes
    assert shown.count("(the turns above) have") == 2  # and a later turn's prompt only where it goes on
    assert exit_code("rollouts", str(tmp_path), "--group", "3") == 1
    assert capsys.readouterr().err == "rlmesh: there is no group 3 in that step; it has 0, 1, 2\n"
    assert exit_code("rollouts", str(tmp_path), "--step", "6") == 1
    assert capsys.readouterr().err == f"rlmesh: {tmp_path} has no episodes of step 6; it has 7\n"


def test_stacks_of_a_copied_run(capsys, tmp_path):
    (tmp_path / "recipe.yaml").write_text("")
    assert exit_code("stacks", str(tmp_path)) == 1
    assert capsys.readouterr().err == f"rlmesh: {tmp_path}: no process is using it; the run has ended\n"


def test_a_damaged_file_of_episodes_is_named(capsys, tmp_path):
    directory = RunDirectory(tmp_path)
    directory.begin(check_recipe(Recipe(run=RunConfig(dir=str(tmp_path)))))
    directory.close()
    path = tmp_path / "rollouts" / "step_0.jsonl"
    for content in ('{"group": 0}\n{"gro', "[]\n[]\n"):
        path.write_text(content)
        assert exit_code("rollouts", str(tmp_path)) == 1
        assert capsys.readouterr().err.startswith(f"rlmesh: {path}, line ")


async def test_an_export_into_the_runs_own_checkpoints_is_refused(capsys, tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.begin(check_recipe(Recipe(run=RunConfig(dir=str(tmp_path / "run")))))
    async with directory.checkpoints.save(5, keep=2) as folder:
        (folder / "model").mkdir()
    directory.close()
    assert exit_code("export", str(tmp_path / "run"), str(tmp_path / "run" / "checkpoints" / "step_5" / "out")) == 1
    assert "is inside of the run's own checkpoints" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["file/run", "x" * 300])
def test_a_directory_that_cannot_be_made_is_named(capsys, tmp_path, place):
    (tmp_path / "file").touch()
    assert exit_code("run", BLACKJACK, f"run.dir={tmp_path / place}") == 1
    assert capsys.readouterr().err.startswith(f"rlmesh: run.dir: cannot write {tmp_path / place}: ")


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    command = f"{sys.executable} -m rlmesh.cli run {BLACKJACK} --dry-run | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("run:\n", "")


def test_a_working_directory_that_is_gone_is_one_sentence(tmp_path):
    command = f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir ../gone && {sys.executable} -m rlmesh.cli stacks x"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("rlmesh: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["run"], ["run", BLACKJACK, "--dry"], ["exprot"], ["export", "a"]])
def test_a_wrong_command_ends_with_2(arguments, capsys):
    assert exit_code(*arguments) == 2
    assert "Error" in capsys.readouterr().err
