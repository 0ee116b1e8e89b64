import numpy as np
import orjson
import pytest
from matplotlib import image

from rlmesh.metrics.plots import plot_learning_curve

REFERENCES = {"random": -0.39, "optimal": -0.04}


def draw(folder, rows, references=None):
    (folder / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    plot_learning_curve(folder / "metrics.jsonl", folder / "curve.png", references)
    return image.imread(folder / "curve.png")


def rows(steps):
    for step in range(steps):
        row = {"step": step, "reward/mean": -0.4 + 0.3 * step / steps, "entropy": 0.7 - step / steps / 2, "kl": 0.01}
        row |= {"time/generate": 0.5, "time/train": 0.2, "time/weight_sync": 0.05, "time/wait_for_batch": 0.3}
        yield row | ({"eval/blackjack/greedy_value": -0.3 + 0.2 * step / steps} if step % 10 == 0 else {})


def test_the_curves_and_the_references_are_drawn(tmp_path):
    full = draw(tmp_path, rows(40), REFERENCES)
    assert full.shape[0] > 800 and full.shape[1] > 800
    assert not np.array_equal(full, draw(tmp_path, rows(40)))
    assert not np.array_equal(full, draw(tmp_path, ({k: v for k, v in row.items() if k != "kl"} for row in rows(40))))


@pytest.mark.parametrize("content", [[], [{"step": 0, "reward/mean": None}], [{"step": 0, "time/step": 1.0}]])
def test_a_run_with_few_metrics_can_be_drawn(tmp_path, content):
    draw(tmp_path, content)
