"""What a person who got something wrong sees: one sentence that names it, an exit code that is not 0, nothing left running."""

import fcntl
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rlmesh.cli import main
from rlmesh.mesh.scratch import leave

ROOT = Path(__file__).parents[1]
BLACKJACK = str(ROOT / "configs" / "blackjack.yaml")
QUICK = ["rollout.groups_per_step=4", "rollout.group_size=2", "warm_start.steps=1", "eval.name=''", "env.retries=1"]

# What can be known before anything is started.
BEFORE = {
    "unknown key": (["trainer.optimiser.lr=1"], "trainer.optimiser: unknown key; did you mean 'trainer.optimizer'?"),
    "wrong type": (["rollout.group_size=many"], "rollout.group_size: a whole number is needed, not 'many'"),
    "out of range": (
        ["policy.engine.gpu_memory_utilization=2"],
        "policy.engine.gpu_memory_utilization: 2.0 must be at",
    ),
    "no model folder": (["model.source=./nowhere"], "model.source: there is no model folder './nowhere'"),
    "no reward module": (
        ["reward.function=my_reward.f"],
        "reward.function: cannot import 'my_reward.f': there is no mod",
    ),
    "no reward function": (["reward.function=rlmesh.rewards.retrn"], "reward.function: module 'rlmesh.rewards' has no"),
    "no loss": (["algorithm.loss=gppo"], "algorithm.loss: 'gppo' is none of grpo; did you mean 'grpo'?"),
    "no environment": (
        ["env.app=blackjack_env.app:app"],
        "env.app: cannot import 'blackjack_env.app.app': there is no",
    ),
    "no GPU in the recipe": (
        ["placement.actors.policy.gpus=1"],
        "placement.actors.policy.gpus: host 0 of 'local' would",
    ),
    "no GPU in the machine": (
        ["placement.hosts.local.gpus=64"],
        "placement.hosts.local.gpus: the recipe says 64, and th",
    ),
    "group of 1": (["rollout.group_size=1"], "rollout.group_size: a group of 1 has no one to be compared with"),
    "unfillable batch": (["algorithm.minibatches=64"], "algorithm.minibatches: 64 parts cannot be made of"),
    "backward schedule": (
        ["algorithm.kl_coef={from: 1, to: 0, over: -1}"],
        "algorithm.kl_coef: the schedule ends before it starts",
    ),
    "late schedule": (
        ["algorithm.kl_coef={from: 1, to: 0, after: 900}"],
        "algorithm.kl_coef: the schedule starts at step",
    ),
    "half a schedule": (["algorithm.clip_low={from: 0.1}"], "algorithm.clip_low: a schedule needs 'to'"),
    "prompt too long": (["rollout.max_tokens=64"], "rollout.max_tokens: 64 leaves no room for a prompt"),
    "rows too short": (["trainer.pack_length=32"], "trainer.pack_length: a row of 32 tokens cannot hold a sample"),
    "ranks without procs": (
        ["trainer.parallelism.data_parallel_shard=2"],
        "placement.actors.trainer.procs: trainer.par",
    ),
    "sleeping and ahead": (["policy.sleep=true"], "policy.sleep: the next step's rollouts would need the engine"),
    "guest of no one": (
        ["placement.actors.trainer.gpus_of=polcy"],
        "placement.actors.trainer.gpus_of: 'polcy' is no ac",
    ),
    "name of a directory above": (["run.name=.."], "run.name: '..' is not a name for a directory"),
    "name with a path": (["run.name=/tmp/x"], "run.name: '/tmp/x' is not a name for a directory"),
    "text that is none": (["run.name=\udcff"], "'run.name=\\udcff': an override is text in UTF-8"),
    "nothing filled in": (["model.source=???"], "model.source: a value is needed in place of '???'"),
    "seed too large": ([f"run.seed={2**64}"], f"run.seed: {2**64} must be below"),
    "too many": (["placement.actors.rollout.replicas=100000"], "placement.actors.rollout.replicas: 100000 must be at"),
    "evaluation's arguments": (
        ["eval.args.rule=x"],
        "eval.args.rule: rlmesh.evals.blackjack.BlackjackEvaluator has no such",
    ),
    "evaluation's rules": (
        ["eval.args.rules=x"],
        "eval.args: blackjack failed: ValueError: rules 'x' are unknown; choose",
    ),
    "reward's arguments": (
        ["reward.args.bonus=1"],
        "reward.args.bonus: rlmesh.rewards.episode_return has no such argument",
    ),
    "warm start's arguments": (
        ["warm_start.args.rule=x"],
        "warm_start.args.rule: blackjack_env.warm_start.random_play has no such argument; did you mean 'rules'?",
    ),
    "not an override": (["run.steps"], "'run.steps': an override is key=value"),
    "no evaluation": (["eval.name=blakjack"], "eval.name: 'blakjack' is none of blackjack; did you mean 'blackjack'?"),
}


def complaint(capsys, *arguments: str) -> str:
    """The one thing that the command said, at its end."""
    with pytest.raises(SystemExit) as stop:
        main(["run", *arguments])
    assert stop.value.code in (1, 2)
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("overrides, message", BEFORE.values(), ids=BEFORE)
def test_what_is_wrong_is_said_before_anything_starts(capsys, tmp_path, overrides, message):
    before = psutil.Process().children(recursive=True)
    said = complaint(capsys, BLACKJACK, *overrides, f"run.dir={tmp_path / 'run'}")
    assert said.startswith(f"rlmesh: {message}")
    leave()  # the command does so when it is a process of its own
    left = set(psutil.Process().children(recursive=True)) - set(before)
    assert not psutil.wait_procs(left, timeout=10)[1]


def test_a_recipe_that_extends_itself(capsys, tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml")
    (tmp_path / "b.yaml").write_text("extends: a.yaml")
    said = complaint(capsys, str(tmp_path / "a.yaml"))
    assert said.startswith("rlmesh: extends: ") and said.endswith("extends itself (a.yaml -> b.yaml -> a.yaml)")


def test_a_run_directory_that_another_process_uses(capsys, tmp_path):
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert complaint(capsys, BLACKJACK, f"run.dir={tmp_path}").startswith(
            "rlmesh: run.dir: another process is using"
        )


def run_to_its_end(tmp_path, *overrides: str) -> tuple[int, str, list[psutil.Process]]:
    """Exit code, what stderr says, and what is left of the run's own processes."""
    command = [sys.executable, "-m", "rlmesh.run", BLACKJACK, *QUICK, f"run.dir={tmp_path / 'run'}", *overrides]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    family: dict[int, psutil.Process] = {}
    while process.poll() is None:
        family |= {p.pid: p for p in psutil.Process(process.pid).children(recursive=True)}
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    return process.returncode, process.stderr.read(), psutil.wait_procs(family.values(), timeout=5)[1]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    NOBODY = f"ws://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize(
    "override, message",
    [
        ("reward.function=reward_functions.returns_none", "reward_functions.returns_none returned None for episode"),
        ("env.args.rules=vegas", "vegas"),
        slow("env.app=broken_env:app", "No module named 'a_package_that_is_not_there'"),
        slow(f"env.url={NOBODY}", NOBODY),
        slow("env.app=failing_envs:dies_when_played", "none of the step's episodes could be scored"),
        slow("reward.function=reward_functions.raises", "KeyError: 'total'"),
        slow("reward.function=reward_functions.returns_nan", "returned nan"),
    ],
)
def test_what_goes_wrong_while_running_ends_the_run(tmp_path, override, message):
    code, errors, left = run_to_its_end(tmp_path, override)
    assert code == 1
    [said] = re.findall(r"^rlmesh: .*", errors, re.MULTILINE | re.DOTALL)
    assert message in said
    assert not left
    assert not (tmp_path / "run" / "recipe.yaml").exists()  # it may be tried again under the same name
    assert list((tmp_path / "run" / "logs").iterdir())


@pytest.mark.slow
def test_a_reward_that_never_lets_go_of_the_interpreter_ends_the_run_and_is_named(tmp_path):
    function = "reward.function=reward_functions.never_lets_go"
    code, errors, left = run_to_its_end(tmp_path, function, "reward.timeout_s=0.2", "run.max_restarts=0")
    assert code == 1 and not left
    assert "reward_0: its process died; its log says why" in errors
    log = (tmp_path / "run" / "logs" / "reward_0.log").read_text()
    assert re.search(r"^Timeout .*reward_functions\.py\W+ line \d+ in never_lets_go", log, re.MULTILINE | re.DOTALL)
