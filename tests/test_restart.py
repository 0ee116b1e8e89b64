"""A run whose actor dies goes on by itself, with another in its place or from its newest checkpoint, and ends as if nothing had happened."""

import signal
import time

import orjson
import pytest
from live_run import LiveRun

STEPS = 40
TIMES = ("time", "perf", "recovery", "errors")
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


def check_whole(run_dir) -> list[dict]:
    """The steps' metrics of a run that ended as if nothing had happened."""
    steps = rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in steps] == list(range(STEPS + 1))  # each once
    assert all(row["off_policy/max"] <= 1 for row in steps[:STEPS])
    assert (run_dir / "checkpoints" / "latest").read_text() == f"step_{STEPS}\n"
    assert {path.name for path in (run_dir / "rollouts").iterdir()} == {f"step_{n}.jsonl" for n in range(0, STEPS, 5)}
    return steps


@pytest.mark.parametrize(
    "title, actor",
    [
        ("VLLM::EngineCore", "policy_0"),
        slow("rlmesh:policy", "policy_0"),
        slow("rlmesh:ref_model", "ref_model_0"),
        slow("rlmesh:rollout", "rollout_0"),
        slow("rlmesh:reward", "reward_0"),
        slow("rlmesh:env", "env_0"),
    ],
)
def test_a_new_actor_takes_the_place_of_one_that_died(live, tmp_path, title, actor):
    run = live()
    run.wait_for("step 4 | ")
    before = run.titles()
    run.signal_process(title, signal.SIGKILL)
    run.wait_for(f"{actor} was replaced in")
    assert sorted(run.titles()) == sorted(before)
    assert run.end() == 0, run.said
    assert "it is being replaced, time 1 of 3" in run.said and "Traceback" not in run.said
    steps = check_whole(tmp_path / "run")
    began, died, replaced = rows(tmp_path / "run" / "events.jsonl")
    assert [event["event"] for event in (began, died, replaced)] == ["began", "actor died", "actor replaced"]
    assert died["actor"] == replaced["actor"] == actor and steps[replaced["step"]]["recovery/replaced"] == 1
    assert not any("recovery/restarts" in row for row in steps)


@pytest.mark.parametrize(
    "title, actor",
    [
        ("rlmesh:trainer", "trainer_0"),
        slow("rlmesh:replay_buffer", "replay_buffer_0"),
        slow("rlmesh:weight_store", "weight_store"),
    ],
)
def test_a_run_goes_back_to_its_checkpoint_after_the_death_of_what_holds_its_state(live, tmp_path, title, actor):
    run = live("checkpoint.every=2")
    run.wait_for("step 4 | ")
    run.signal_process(title, signal.SIGKILL)
    run.wait_for("first training step")  # the second one
    titles = run.titles()
    assert len(titles) == len(set(titles)) == 8  # nothing is left of those before
    assert run.end() == 0, run.said
    assert "going on from the newest checkpoint, restart 1 of 3" in run.said and "Traceback" not in run.said
    steps = check_whole(tmp_path / "run")
    began, died, restarted = rows(tmp_path / "run" / "events.jsonl")
    assert [event["event"] for event in (began, died, restarted)] == ["began", "actor died", "restarted"]
    assert died["actor"] in (actor, "") and steps[restarted["step"]]["recovery/restarts"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "title, goes_on",
    [
        ("rlmesh:trainer", "going on from the newest checkpoint"),
        ("rlmesh:policy", "it is being replaced"),
        ("VLLM::EngineCore", "it is being replaced"),
        ("rlmesh:rollout", "it is being replaced"),
        ("rlmesh:reward", "it is being replaced"),
    ],
)
def test_a_run_goes_on_after_an_actor_was_frozen(live, tmp_path, title, goes_on):
    run = live("checkpoint.every=2")
    run.wait_for("step 4 | ")
    run.signal_process(title, signal.SIGSTOP)
    frozen = time.monotonic()
    run.wait_for(goes_on)
    assert time.monotonic() - frozen < 15
    assert run.end() == 0, run.said
    check_whole(tmp_path / "run")


@pytest.mark.slow
def test_neither_a_replacement_nor_another_run_changes_a_number_of_an_on_policy_run(live, tmp_path):
    """Groups that are made again come from the same seeds and the same weights; runs on one machine share nothing."""
    on_policy = ("replay_buffer.max_policy_age=0", "run.steps=12")
    left_alone, hit = (live(*on_policy, f"run.dir={tmp_path / name}") for name in ("left alone", "hit"))
    hit.wait_for("step 4 | ")
    hit.signal_process("rlmesh:rollout", signal.SIGKILL)
    for run in (left_alone, hit):
        assert run.end() == 0, run.said
    assert "rollout_0 was replaced" in hit.said and "replaced" not in left_alone.said
    left_alone, hit = (
        [
            {key: value for key, value in row.items() if key.partition("/")[0] not in TIMES}
            for row in rows(tmp_path / name / "metrics.jsonl")
        ]
        for name in ("left alone", "hit")
    )
    assert left_alone == hit


@pytest.mark.slow
def test_what_keeps_dying_ends_the_run_with_its_last_words(live, tmp_path):
    run = live("checkpoint.every=1000", "run.max_restarts=1")
    for _ in range(2):
        run.wait_for("step 1 | ")
        ((tmp_path / "run") / "logs" / "trainer_0.log").open("a").write("the last word\n")
        run.signal_process("rlmesh:trainer", signal.SIGKILL)
    assert run.end() == 1
    message = run.said[run.said.index("rlmesh: ") :]
    assert "trainer_0: its process died" in message and "went on 1 times after such a death" in message
    assert message.endswith("the last word\n") and "Traceback" not in message
