import math
import os
import sqlite3
import struct
import subprocess
import sys
import time

import orjson
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from rlmesh.metrics.backends import make_backends
from rlmesh.metrics.config import MetricsConfig


def backends(folder, warn=pytest.fail, **config):
    return make_backends(MetricsConfig(**config), folder, "night", {"run": {"seed": 3}}, warn)


def test_json_lines_are_there_after_each_step_and_appended_to(tmp_path):
    for first in (0, 2):
        [backend] = backends(tmp_path, tensorboard=False)
        for step in (first, first + 1):
            backend.write(step, {"reward/mean": -0.5, "kl": math.nan})
            rows = [orjson.loads(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
            assert rows[-1] == {"step": step, "reward/mean": -0.5, "kl": None}
        backend.close()
    assert [row["step"] for row in rows] == [0, 1, 2, 3]


def test_tensorboard_can_read_what_is_written(tmp_path):
    [backend] = backends(tmp_path, jsonl=False)
    for step in range(3):
        backend.write(step, {"reward/mean": step / 2, "time/step": 1.0})
    backend.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    tags = events.Tags()
    assert set(tags["scalars"] + tags["tensors"]) == {"reward/mean", "time/step"}


def wandb_history(path) -> list[dict]:
    """The rows of a short .wandb file: LevelDB's log format, of one block here, after a header of 7 bytes."""
    content, place, rows = path.read_bytes(), 7, []
    while place < len(content):
        _checksum, size, _kind = struct.unpack_from("<IHB", content, place)
        if place + 7 + size > len(content):  # still being written
            break
        record = Record.FromString(content[place + 7 : place + 7 + size])
        place += 7 + size
        if record.HasField("history"):
            rows.append({"/".join(item.nested_key): orjson.loads(item.value_json) for item in record.history.item})
    return rows


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    [backend] = backends(tmp_path, jsonl=False, tensorboard=False, wandb=True)
    for step in (0, 5):
        backend.write(step, {"reward/mean": step / 2})
    backend.close()
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 20
    while not (rows := wandb_history(file)) and time.monotonic() < deadline:  # its own process writes the file
        time.sleep(0.1)
    assert [(row["_step"], row["reward/mean"]) for row in rows] == [(0, 0.0), (5, 2.5)]


def alone(folder, code, **environment):
    """Run in a process of its own, there: trackers keep what they found at their first use."""
    prelude = (
        "from pathlib import Path; import psutil; from rlmesh.metrics.config import MetricsConfig;"
        "from rlmesh.metrics.backends import make_backends;"
        "make = lambda **config: make_backends("
        "MetricsConfig(tensorboard=False, **config), Path('.'), 'night', {'run': {'seed': 3}}, print);"
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    command = [sys.executable, "-c", prelude + code]
    environment = {**inherited, "HF_HUB_OFFLINE": "1", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=environment)


def test_trackio(tmp_path):
    code = (
        "[backend] = make(jsonl=False, trackio=True, project='cards');"
        "backend.write(0, {'reward/mean': 0.0}); backend.write(5, {'reward/mean': 2.5}); backend.close()"
    )
    done = alone(tmp_path, code, TRACKIO_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "cards.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert [(name, step, orjson.loads(row)) for name, step, row in rows] == [
        ("night", 0, {"reward/mean": 0.0}),
        ("night", 5, {"reward/mean": 2.5}),
    ]


def test_a_tracker_whose_own_process_dies_is_said_once_and_the_run_goes_on(tmp_path):
    code = (
        "jsonl, wandb = make(wandb=True); children = psutil.Process().children(recursive=True);"
        "[child.kill() for child in children]; psutil.wait_procs(children);"
        "[backend.write(step, {'reward/mean': 0.5}) for step in range(3) for backend in (wandb, jsonl)];"
        "wandb.close(); jsonl.close()"
    )
    done = alone(tmp_path, code, WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("metrics.wandb: ")]
    assert line.endswith("; later failures of it are not shown")
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 3


def test_a_tracker_without_an_account_is_one_sentence(tmp_path):
    done = alone(tmp_path, "make(wandb=True)", WANDB_BASE_URL="http://127.0.0.1:9", HOME=str(tmp_path))
    assert done.stderr.splitlines()[-1] == (
        "rlmesh.errors.RecipeError: metrics.wandb: UsageError: No API key configured. Use `wandb login` to log in."
    )


def test_nothing_is_written_unasked(tmp_path):
    assert backends(tmp_path, jsonl=False, tensorboard=False) == []
    assert list(tmp_path.iterdir()) == []
