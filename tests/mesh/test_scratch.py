"""Where a run's temporary files are, and that they go."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from rlmesh.segments import SEGMENTS, own_segment

TWICE = """
import psutil, subprocess, sys, tempfile, time
from pathlib import Path
from rlmesh.mesh.scratch import Scratch

for _ in range(2):
    with Scratch():
        file = Path(tempfile.mkdtemp()) / "file"
        file.write_text("x")
        folder = Path(tempfile.gettempdir())
        (folder / ".tmp-of-monarch").mkdir(exist_ok=True)
        sleeper = subprocess.Popen(["sleep", "100"], start_new_session=True)
    assert not psutil.pid_exists(sleeper.pid)
    assert [path.name for path in folder.iterdir()] == [".tmp-of-monarch"]
with Scratch():
    print(folder, subprocess.Popen(["sleep", "100"], start_new_session=True).pid, flush=True)
    sys.stdin.read()
"""


def test_a_second_mesh_of_a_process_finds_what_the_first_ones_host_keeps_and_the_end_leaves_nothing(tmp_path):
    environment = {**os.environ, "TMPDIR": tempfile.mkdtemp(prefix="scr-")}
    command = [sys.executable, "-c", TWICE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        words = process.stdout.readline().split()
        folder, sleeper = Path(words[0]), int(words[1])
        time.sleep(0.5)
        assert folder.exists() and folder.parent == Path(environment["TMPDIR"])
        process.kill()
        process.wait()
    deadline = time.monotonic() + 5
    while (folder.exists() or psutil.pid_exists(sleeper)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists() and not psutil.pid_exists(sleeper)
    folder.parent.rmdir()


def test_the_memory_that_was_shared_goes_too():
    code = (
        "from rlmesh.mesh.scratch import Scratch\nfrom rlmesh.segments import own_segment\n"
        "with Scratch():\n    own_segment().write_text('x')\n    print(own_segment().name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    prefix = done.stdout.strip().rpartition("-")[0]
    assert prefix != own_segment().name.rpartition("-")[0]
    assert not list(SEGMENTS.glob(f"{prefix}*"))


NESTED = """
import subprocess, sys
from rlmesh.mesh.scratch import Scratch
from rlmesh.segments import SEGMENTS, own_segment

with Scratch():
    actor = subprocess.Popen(["sleep", "100"])
    segment = own_segment()
    segment.write_text("x")
    inner = "from rlmesh.mesh.scratch import Scratch\\nwith Scratch(): pass"
    subprocess.run([sys.executable, "-c", inner], check=True)
    assert actor.poll() is None and segment.exists()
"""


UNDER_LOAD = """
import psutil, subprocess
from rlmesh.mesh import scratch

scratch._KILL_LIMIT_S = 0  # a machine under load: the time is over before anything was killed
with scratch.Scratch():
    sleeper = subprocess.Popen(["sleep", "100"], start_new_session=True)
assert not psutil.pid_exists(sleeper.pid)
"""


TITLED = """
import psutil, subprocess, sys
from rlmesh.mesh.scratch import Scratch

with Scratch():
    code = "import setproctitle, time; setproctitle.setproctitle('rlmesh:mine'); print(1, flush=True); time.sleep(100)"
    titled = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    titled.stdout.readline()
    assert psutil.Process(titled.pid).cmdline()[0] == "rlmesh:mine"
assert not psutil.pid_exists(titled.pid)
"""


def test_a_process_that_gave_itself_a_title_is_killed_too():
    subprocess.run([sys.executable, "-c", TITLED], check=True)


def test_what_was_started_is_killed_however_long_the_search_takes():
    subprocess.run([sys.executable, "-c", UNDER_LOAD], check=True)


def test_a_run_that_another_one_starts_leaves_it_alone():
    subprocess.run([sys.executable, "-c", NESTED], check=True)
