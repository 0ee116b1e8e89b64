"""A run that is stopped, at any moment and in any way, ends soon and leaves nothing: no process, no file, no shared memory."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from rlmesh.segments import SEGMENTS

LONG = [
    "run.steps=100000",
    "rollout.groups_per_step=4",
    "rollout.group_size=4",
    "warm_start.steps=20",
    "warm_start.batch_size=64",
    "eval.every=2",
    "checkpoint.every=2",
    "run.max_restarts=0",
]


class StartedRun:
    """A run of its own, with a temporary folder of its own and a list of every process that it ever had."""

    def __init__(self, folder: Path, *overrides: str):
        self.temporary = Path(tempfile.mkdtemp(prefix="stop-"))  # and not below `folder`: sockets need a short path
        command = [sys.executable, "-m", "rlmesh.run", "configs/blackjack.yaml", *LONG, f"run.dir={folder / 'run'}"]
        self.process = subprocess.Popen(
            [*command, *overrides],
            stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("wb"),
            text=True,
            env={**os.environ, "TMPDIR": str(self.temporary), "PYTHONPATH": str(Path(__file__).parent)},
            process_group=0,
        )
        self._stderr, self._segments = folder / "stderr", f"rlmesh-*-{self.process.pid}-*"
        self._semaphores = set(SEGMENTS.glob("sem.mp-*"))
        self._family: dict[int, psutil.Process] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        controller = psutil.Process(self.process.pid)
        while True:
            try:
                self._family |= {child.pid: child for child in controller.children(recursive=True)}
            except psutil.NoSuchProcess:
                return
            time.sleep(0.1)

    def wait_for(self, line: str) -> None:
        for said in self.process.stdout:
            if line in said:
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise AssertionError(f"the run ended before it said '{line}': {self.errors}")

    def stop(self, number: signal.Signals, times: int = 1) -> None:
        self._send(number)
        for _ in range(times - 1):
            time.sleep(0.5)
            self._send(number)

    def _send(self, number: signal.Signals) -> None:
        if number == signal.SIGINT:  # as a terminal does
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def kill(self, title: str) -> None:
        next(p for p in self._family.values() if p.is_running() and title in " ".join(p.cmdline())).kill()

    @property
    def errors(self) -> str:
        return self._stderr.read_text()

    def gone_within(self, limit_s: float) -> int:
        """Its exit code, once the whole family and all that it made are gone; fails when something is left then."""
        deadline = time.monotonic() + limit_s
        code = self.process.wait(limit_s)
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left
        return code

    def _left(self) -> list:
        family = [p for p in self._family.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        semaphores = set(SEGMENTS.glob("sem.mp-*")) - self._semaphores
        return [*family, *self.temporary.iterdir(), *SEGMENTS.glob(self._segments), *semaphores]

    def clean_up(self) -> None:
        self.process.kill()
        for process in self._family.values():
            if process.is_running():
                process.kill()
        shutil.rmtree(self.temporary)


@pytest.fixture
def start(tmp_path):
    runs = []

    def started(*overrides: str) -> StartedRun:
        runs.append(StartedRun(tmp_path, *overrides))
        return runs[-1]

    yield started
    for run in runs:
        run.clean_up()


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# Seconds after the start, or a line of the console and seconds after it.
MOMENTS = {
    "imports": 1.0,
    "Monarch": ("waiting for weight store", 0.0),
    "vLLM": ("waiting for policy server", 4.0),
    "warm start": ("warm start: 4/20", 0.0),
    "step": ("step 1 ", 0.0),
    "checkpoint": ("step 3 ", 0.1),
}


def reach(run: StartedRun, moment: str) -> None:
    place = MOMENTS[moment]
    if isinstance(place, float):
        time.sleep(place)
        return
    line, after_s = place
    run.wait_for(line)
    time.sleep(after_s)


@pytest.mark.parametrize(
    "moment, number, times",
    [
        ("imports", signal.SIGINT, 1),
        ("vLLM", signal.SIGINT, 2),
        slow("Monarch", signal.SIGINT, 1),
        slow("Monarch", signal.SIGTERM, 1),
        slow("vLLM", signal.SIGINT, 1),
        slow("warm start", signal.SIGINT, 1),
        slow("step", signal.SIGINT, 1),
        slow("step", signal.SIGINT, 2),
        ("step", signal.SIGTERM, 1),
        slow("checkpoint", signal.SIGINT, 1),
    ],
)
def test_a_signal_ends_the_run_within_10_s(start, moment, number, times):
    run = start()
    reach(run, moment)
    run.stop(number, times)
    assert run.gone_within(10) in (128 + number, -number)
    assert "Traceback" not in run.errors
    assert (
        f"rlmesh: stopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}" in run.errors or moment == "imports"
    )


@pytest.mark.parametrize("number", [slow(signal.SIGINT), signal.SIGTERM])
def test_a_signal_ends_a_run_that_the_users_own_code_blocks(start, number):
    run = start("warm_start.data=hanging_data.never")
    run.wait_for("policy server (vLLM): ready")
    time.sleep(3)
    run.stop(number)
    assert run.gone_within(10) == 128 + number
    assert "Traceback" not in run.errors and "rlmesh: stopped by" in run.errors


@pytest.mark.parametrize("moment", [slow("Monarch"), "vLLM", slow("warm start"), slow("step"), slow("checkpoint")])
def test_nothing_outlives_a_controller_that_is_killed(start, moment):
    run = start()
    reach(run, moment)
    run.stop(signal.SIGKILL)
    assert run.gone_within(15) == -signal.SIGKILL


@pytest.mark.parametrize("title", ["rlmesh:trainer", slow("VLLM::EngineCore"), slow("rlmesh:rollout")])
def test_nothing_is_left_when_an_actor_dies(start, title):
    run = start()
    reach(run, "step")
    run.kill(title)
    assert run.gone_within(40) == 1
    assert "Traceback" not in run.errors
    [message] = [line for line in run.errors.splitlines() if line.startswith("rlmesh: ")]
    assert title.removeprefix("rlmesh:").partition("::")[0].lower() in message.lower() or "PolicyServer" in message


@pytest.mark.slow
def test_a_run_that_ends_by_itself_leaves_nothing(start):
    run = start("run.steps=2")
    run.wait_for("done in")
    assert run.gone_within(15) == 0
