import math

import orjson
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlmesh.metrics.backends import make_backends
from rlmesh.metrics.config import MetricsConfig


def test_json_lines_are_there_after_each_step_and_appended_to(tmp_path):
    for first in (0, 2):
        [backend] = make_backends(MetricsConfig(tensorboard=False), tmp_path)
        for step in (first, first + 1):
            backend.write(step, {"reward/mean": -0.5, "kl": math.nan})
            rows = [orjson.loads(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
            assert rows[-1] == {"step": step, "reward/mean": -0.5, "kl": None}
        backend.close()
    assert [row["step"] for row in rows] == [0, 1, 2, 3]


def test_tensorboard_can_read_what_is_written(tmp_path):
    [backend] = make_backends(MetricsConfig(jsonl=False), tmp_path)
    for step in range(3):
        backend.write(step, {"reward/mean": step / 2, "time/step": 1.0})
    backend.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    tags = events.Tags()
    assert set(tags["scalars"] + tags["tensors"]) == {"reward/mean", "time/step"}


def test_nothing_is_written_unasked(tmp_path):
    assert make_backends(MetricsConfig(jsonl=False, tensorboard=False), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
