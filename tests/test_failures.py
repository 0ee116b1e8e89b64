"""A real run in which a process dies: one line that names it, an exit code, and nothing left running."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

LONG = [
    "run.steps=100000",
    "rollout.groups_per_step=4",
    "rollout.group_size=4",
    "warm_start.steps=2",
    "eval.every=0",
    "run.max_restarts=0",
]


@pytest.fixture
def running(tmp_path):
    """A run that has made its first steps, and the processes that it consists of."""
    command = [sys.executable, "-m", "rlmesh.run", "configs/blackjack.yaml", *LONG, f"run.dir={tmp_path / 'run'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step 2 |"):
                break
        family = psutil.Process(process.pid).children(recursive=True)
        yield process, family
        process.kill()
        for left in psutil.wait_procs(family, timeout=0)[1]:
            left.kill()


def member(family, title):
    return next(p for p in family if p.is_running() and title in " ".join(p.cmdline()))


def ended(process, family, limit_s):
    began = time.monotonic()
    _, errors = process.communicate(timeout=limit_s)
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive, [p.cmdline() for p in alive]
    return process.returncode, errors, time.monotonic() - began


KILLED = [
    pytest.param("rlmesh:trainer", "trainer", marks=pytest.mark.slow),
    pytest.param("rlmesh:policy", "policy", marks=pytest.mark.slow),
    pytest.param("rlmesh:rollout", "rollout", marks=pytest.mark.slow),
    pytest.param("rlmesh:replay_buffer", "replay_buffer", marks=pytest.mark.slow),
    pytest.param("rlmesh:reward", "reward", marks=pytest.mark.slow),
    pytest.param("VLLM::EngineCore", "PolicyServer", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("title, name", KILLED)
def test_a_killed_process_ends_the_run_and_is_named(running, title, name):
    process, family = running
    os.kill(member(family, title).pid, signal.SIGKILL)
    code, errors, _ = ended(process, family, limit_s=60)
    assert code == 1
    assert "Traceback" not in errors
    [message] = [line for line in errors.splitlines() if line.startswith("rlmesh: ")]
    assert name.lower().replace("_", "") in message.lower().replace("_", "")


def test_stacks_shows_where_every_process_is(running, tmp_path):
    process, family = running
    command = [sys.executable, "-m", "rlmesh.cli", "stacks", str(tmp_path / "run")]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if "SYS_PTRACE" in shown.stderr:
        pytest.skip(shown.stderr.strip())
    assert shown.returncode == 0, shown.stderr
    titles = [line for line in shown.stdout.splitlines() if line.startswith("== ")]
    assert {int(title.split()[1]) for title in titles} >= {process.pid, *(p.pid for p in family if p.is_running())}
    for what in ("rlmesh:trainer_0", "rlmesh:policy_0", "VLLM::EngineCore", "rlmesh.envs.serve"):
        assert any(what in title for title in titles), what
    assert "run_busy_loop" in shown.stdout  # the engine core's own loop
    assert shown.stdout.count("Thread ") < 150  # a pool's threads are not shown one by one
    process.send_signal(signal.SIGINT)
    ended(process, family, limit_s=30)
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        f"rlmesh: {tmp_path / 'run'}: no process is using it; the run has ended\n",
    )
