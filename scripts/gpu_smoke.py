"""The first thing to run on a machine with a GPU: does each part work there, and do policy and trainer agree?

    python scripts/gpu_smoke.py [--dtype bfloat16]

Checks the installed versions against requirements/gpu.txt and what torch sees, then makes two short runs of the BlackJack recipe
on one GPU, with the tiny model: policy and trainer side by side, and in turn with the policy asleep. Ends with 0 when all is well.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import orjson
import typer

ROOT = Path(__file__).parents[1]
_PACKAGES = ("torch", "torchmonarch", "torchstore", "torchtitan", "vllm")
_SHORT = [
    "run.steps=4",
    "rollout.groups_per_step=8",
    "rollout.group_size=8",
    "warm_start.steps=10",
    "eval.every=2",
    "algorithm.minibatches=1",
]
_ONE_GPU = [
    "placement.hosts.local.gpus=1",
    "placement.actors.policy.gpus=1",
    "placement.actors.trainer.gpus_of=policy",
    "placement.actors.ref_model.gpus_of=policy",
    "policy.engine.gpu_memory_utilization=0.3",
]
_IN_TURN = ["policy.sleep=true", "replay_buffer.max_policy_age=0"]
# Of the logprobs of the same tokens under the same weights, as a KL: rounding, and no more.
_MISMATCH_KL = {"float32": 1e-5, "bfloat16": 1e-2}


def wrong_versions() -> list[str]:
    """What is installed in another version than requirements/gpu.txt names."""
    pinned = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "requirements" / "gpu.txt").read_text(), re.MULTILINE))
    wrong = []
    for name in _PACKAGES:
        try:
            installed = version(name).partition("+")[0]
        except PackageNotFoundError:
            installed = "not installed"
        if installed != pinned[name]:
            wrong.append(f"{name} is {installed}, and requirements/gpu.txt names {pinned[name]}")
    return wrong


def visible_gpus() -> list[str]:
    """Name and memory of each GPU that torch sees."""
    import torch

    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"{p.name}, {p.total_memory / 2**30:.0f} GiB" for p in properties]


def short_run(overrides: list[str], dtype: str) -> list[str]:
    """What is wrong with a short run: its error, or numbers that should not be."""
    dtypes = [f"{key}.dtype={dtype}" for key in ("policy.engine", "trainer", "ref_model")]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "rlmesh.run",
            str(ROOT / "configs" / "blackjack.yaml"),
            f"run.dir={folder}/run",
        ]
        done = subprocess.run([*command, *_SHORT, *_ONE_GPU, *dtypes, *overrides], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            return [done.stderr.strip()]
        rows = [orjson.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_bytes().splitlines()]
    wrong = [
        f"step {row['step']}: {name} is not finite" for row in rows for name, value in row.items() if value is None
    ]
    worst = max(row.get("mismatch_kl/max", 0.0) for row in rows if row.get("off_policy/max") == 0)
    if worst > _MISMATCH_KL[dtype]:
        wrong.append(f"trainer and policy disagree on the same tokens: mismatch_kl/max {worst:.2g}")
    return wrong


def main(dtype: str = "float32") -> None:
    """Run the checks and say what failed."""
    gpus = visible_gpus()
    print("\n".join(gpus) or "torch sees no GPU")
    failed = wrong_versions() if gpus else ["no GPU"]
    for name, overrides in (("side by side", []), ("in turn, the policy asleep", _IN_TURN)) if gpus else ():
        print(f"a short run of policy and trainer on one GPU, {name}:")
        failed += [f"{name}: {problem}" for problem in short_run(overrides, dtype)]
    for problem in failed:
        print(f"FAILED {problem}", file=sys.stderr)
    if failed:
        raise SystemExit(1)
    print("all is well")


if __name__ == "__main__":
    typer.run(main)
