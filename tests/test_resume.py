"""A run that is stopped and goes on ends exactly where one that was never stopped does."""

import signal

import orjson
import pytest
from live_run import LiveRun
from safetensors.numpy import load_file

STEPS = 8
RECIPE = [
    "configs/blackjack.yaml",
    f"run.steps={STEPS}",
    "rollout.groups_per_step=6",
    "rollout.group_size=4",
    "warm_start.steps=8",
    "warm_start.batch_size=64",
    "replay_buffer.max_policy_age=0",
    "eval.every=3",
    "checkpoint.every=0",
]


def run(*arguments: str) -> str:
    command = LiveRun(*arguments)
    assert command.end() == 0, command.said
    return command.said


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    directory = tmp_path_factory.mktemp("straight") / "run"
    run(*RECIPE, f"run.dir={directory}")
    return directory


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that SIGTERM ended in step 3 or soon after, and what it said."""
    directory = tmp_path_factory.mktemp("stopped") / "run"
    command = LiveRun(*RECIPE, f"run.dir={directory}")
    command.wait_for("step 2 | ")
    command.terminate()
    assert command.end() == 128 + signal.SIGTERM, command.said
    return directory, command.said


@pytest.fixture(scope="module")
def resumed(stopped):
    directory, _ = stopped
    (before,) = (path.name for path in (directory / "checkpoints").glob("step_*"))
    return directory, before, run(*RECIPE, f"run.dir={directory}", "--resume")


def rows(directory) -> list[dict]:
    """Metrics of every step, without what depends on the clock."""
    lines = (directory / "metrics.jsonl").read_bytes().splitlines()
    return [
        {name: value for name, value in orjson.loads(line).items() if not name.startswith(("time/", "perf/"))}
        for line in lines
    ]


def test_sigterm_ends_a_run_after_its_step_and_saves_it(stopped):
    directory, said = stopped
    assert "SIGTERM: ends after this step, with a checkpoint" in said
    assert "rlmesh: stopped by SIGTERM" in said and "Traceback" not in said
    (checkpoint,) = (directory / "checkpoints").glob("step_*")
    assert (directory / "checkpoints" / "latest").read_text() == f"{checkpoint.name}\n"
    assert f"step {int(checkpoint.name.removeprefix('step_')) - 1} | " in said


def test_a_resumed_run_says_where_it_goes_on(resumed):
    directory, checkpoint, said = resumed
    step = int(checkpoint.removeprefix("step_"))
    assert 0 < step < STEPS
    assert f"goes on after step {step - 1}, from {directory / 'checkpoints' / checkpoint}" in said
    assert "warm start" not in said


def test_stopped_and_resumed_it_ends_bit_for_bit_as_a_straight_run(straight, resumed):
    directory, _, _ = resumed
    expected, found = rows(straight), rows(directory)
    assert [row["step"] for row in found] == list(range(STEPS + 1))
    assert [row["step"] for row in found if "eval/blackjack/greedy_value" in row] == [0, 3, 6, STEPS]
    assert found == expected
    weights, others = (
        load_file(path / f"checkpoints/step_{STEPS}/model/model.safetensors") for path in (straight, directory)
    )
    assert weights.keys() == others.keys()
    assert all((weights[name] == others[name]).all() for name in weights)


def test_a_run_that_is_done_says_so_and_ends_well(resumed):
    directory, _, _ = resumed
    before = rows(directory)
    said = run(*RECIPE, f"run.dir={directory}", "--resume")
    assert f"all {STEPS} steps are trained" in said
    assert rows(directory) == before
