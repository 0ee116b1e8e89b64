"""A real pretrained model without a hub: two whole steps of its recipe, in a small batch."""

import subprocess
import sys

import orjson

SMALL = [
    "run.steps=2",
    "rollout.groups_per_step=2",
    "rollout.group_size=4",
    "warm_start.steps=3",
    "warm_start.batch_size=8",
    "eval.name=''",
    "metrics.rollouts_every=1",
]


def test_two_steps_of_a_pretrained_model(tmp_path):
    command = [sys.executable, "-m", "rlmesh.run", "configs/blackjack_smollm2.yaml", *SMALL, f"run.dir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [orjson.loads(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    assert [row["step"] for row in rows] == [0, 1]
    for row in rows:
        assert all(row[name] is not None for name in ("loss", "entropy", "optim/grad_norm", "reward/mean"))
        assert -1 <= row["reward/mean"] <= 1
    assert rows[0]["mismatch_kl/max"] < 1e-6  # vLLM and the trainer agree on a tied model with a template of its own
    episodes = [orjson.loads(line) for line in (tmp_path / "rollouts" / "step_0.jsonl").read_bytes().splitlines()]
    assert len(episodes) == 8
    assert all(turn["tokens"] for episode in episodes for turn in episode["turns"])
    assert (tmp_path / "checkpoints" / "step_2" / "model" / "model.safetensors").stat().st_size > 500e6
