"""A run whose actor dies goes on from its newest checkpoint, by itself, and ends as if nothing had happened."""

import signal
import time

import orjson
import pytest
from live_run import LiveRun

STEPS = 40
RECIPE = [
    "configs/blackjack.yaml",
    f"run.steps={STEPS}",
    "rollout.groups_per_step=6",
    "rollout.group_size=4",
    "warm_start.steps=2",
    "warm_start.batch_size=64",
    "eval.every=0",
    "metrics.rollouts_every=5",
]


def rows(path) -> list[dict]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def live(tmp_path):
    runs = []

    def start(*overrides: str) -> LiveRun:
        runs.append(LiveRun(*RECIPE, f"run.dir={tmp_path / 'run'}", *overrides))
        return runs[-1]

    yield start
    for run in runs:
        run.clean_up()


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


KILLED = [
    ("rlmesh:trainer", "trainer_0"),
    slow("rlmesh:policy", "policy_0"),
    slow("VLLM::EngineCore", "policy_0"),
    slow("rlmesh:ref_model", "ref_model_0"),
    slow("rlmesh:rollout", "rollout_0"),
    slow("rlmesh:reward", "reward_0"),
    slow("rlmesh:replay_buffer", "replay_buffer_0"),
    slow("rlmesh:weight_store", "weight store"),
    slow("rlmesh:env", "env_0"),
]


@pytest.mark.parametrize("title, actor", KILLED)
def test_a_run_goes_on_after_the_death_of_any_actor(live, tmp_path, title, actor):
    run = live("checkpoint.every=2")
    run.wait_for("step 4 | ")
    run.signal_process(title, signal.SIGKILL)
    run.wait_for("first training step")  # the second one
    titles = run.titles()
    assert len(titles) == len(set(titles)) == 8  # nothing is left of those before
    assert run.end() == 0, run.said
    assert "going on from the newest checkpoint, restart 1 of 3" in run.said and "Traceback" not in run.said
    steps = rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in steps] == list(range(STEPS + 1))  # each once
    assert all(row["off_policy/max"] <= 1 for row in steps[:STEPS])
    began, died, restarted = rows(tmp_path / "run" / "events.jsonl")
    assert [event["event"] for event in (began, died, restarted)] == ["began", "actor died", "restarted"]
    assert died["actor"] in (actor, "") and steps[restarted["step"]]["recovery/restarts"] == 1
    assert ((tmp_path / "run") / "checkpoints" / "latest").read_text() == f"step_{STEPS}\n"
    assert {path.name for path in ((tmp_path / "run") / "rollouts").iterdir()} == {
        f"step_{n}.jsonl" for n in range(0, STEPS, 5)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "title", ["rlmesh:trainer", "rlmesh:policy", "VLLM::EngineCore", "rlmesh:rollout", "rlmesh:reward"]
)
def test_a_run_goes_on_after_an_actor_was_frozen(live, tmp_path, title):
    run = live("checkpoint.every=2")
    run.wait_for("step 4 | ")
    run.signal_process(title, signal.SIGSTOP)
    frozen = time.monotonic()
    run.wait_for("going on from the newest checkpoint")
    assert time.monotonic() - frozen < 15
    assert run.end() == 0, run.said
    assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == list(range(STEPS + 1))


@pytest.mark.slow
def test_what_keeps_dying_ends_the_run_with_its_last_words(live, tmp_path):
    run = live("checkpoint.every=1000", "run.max_restarts=1")
    for _ in range(2):
        run.wait_for("step 1 | ")
        ((tmp_path / "run") / "logs" / "trainer_0.log").open("a").write("the last word\n")
        run.signal_process("rlmesh:trainer", signal.SIGKILL)
    assert run.end() == 1
    message = run.said[run.said.index("rlmesh: ") :]
    assert "trainer_0: its process died" in message and "went on 1 times after such an end" in message
    assert message.endswith("the last word\n") and "Traceback" not in message
