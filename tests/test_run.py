"""The whole run, short and real: the README's command on a few steps."""

import json
import os
import re
import subprocess
import sys

import orjson
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

SMALL = [
    "run.steps=4",
    "rollout.groups_per_step=6",
    "rollout.group_size=4",
    "warm_start.steps=8",
    "warm_start.batch_size=64",
    "eval.every=2",
    "checkpoint.every=2",
    "metrics.rollouts_every=2",
    "algorithm.minibatches=1",  # the first step's ratios are those of equal weights
]


def rlmesh(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "rlmesh.run", *arguments], capture_output=True, text=True, timeout=240, **options
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "short"
    done = rlmesh("configs/blackjack.yaml", *SMALL, f"run.dir={directory}")
    assert done.returncode == 0, done.stdout + done.stderr
    return directory, done.stdout


def test_what_a_person_sees(finished):
    _, output = finished
    assert "policy server (vLLM): ready after" in output
    assert "step 3 | " in output
    assert "groups 6/6 | age " in output
    assert "4/4, 0 s left" in output
    for policy in ("random", "always stand", "hit below 17", "this policy, greedy", "optimal"):
        assert policy in output
    assert "everything is in" in output


def test_the_run_directory_holds_it_all(finished):
    directory, _ = finished
    rows = [orjson.loads(line) for line in (directory / "metrics.jsonl").read_bytes().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "eval/blackjack/greedy_value" in row] == [0, 2, 4]
    for name in (
        "reward/mean",
        "kl",
        "entropy",
        "mismatch_kl/max",
        "time/step",
        "time/generate",
        "time/train",
        "optim/lr",
        "perf/tokens_per_s",
    ):
        assert all(name in row for row in rows[:4]), name
    assert all(row["off_policy/max"] <= 1 for row in rows[:4])
    assert rows[0]["off_policy/max"] == 0
    assert {p.name for p in (directory / "plots").iterdir()} == {"blackjack.png", "learning_curve.png"}
    assert len(json.loads((directory / "eval" / "blackjack.json").read_text())["states"]) == 280
    assert {p.name for p in (directory / "rollouts").iterdir()} == {"step_0.jsonl", "step_2.jsonl"}
    assert (directory / "checkpoints" / "latest").read_text().strip() == "step_4"
    assert {"policy_0.log", "trainer_0.log", "rollout_0.log"} <= {p.name for p in (directory / "logs").iterdir()}
    assert any((directory / "tensorboard").iterdir())


def test_episodes_are_kept_as_they_were_sampled(finished):
    directory, _ = finished
    episodes = [orjson.loads(line) for line in (directory / "rollouts" / "step_2.jsonl").read_bytes().splitlines()]
    assert len(episodes) == 24
    for episode in episodes:
        assert episode["reward"] == sum(turn["reward"] for turn in episode["turns"])
        for turn in episode["turns"]:
            assert len(turn["tokens"]) == len(turn["logprobs"])
            assert 1 <= turn["versions"][0] <= turn["versions"][1] <= 2
    groups = {}
    for episode in episodes:
        groups.setdefault(episode["group"], []).append(episode)
    for group in groups.values():
        assert len({episode["turns"][0]["observation"] for episode in group}) == 1  # the visible deal is shared
        assert sum(episode["advantage"] for episode in group) == pytest.approx(0, abs=1e-6)


def test_at_every_step_policy_server_and_trainer_compute_the_same_for_the_same_weights(finished):
    directory, _ = finished
    rows = [orjson.loads(line) for line in (directory / "metrics.jsonl").read_bytes().splitlines()][:4]
    assert all(row["mismatch_logprob/max_abs"] <= 5e-6 and row["mismatch_kl/max"] < 1e-10 for row in rows)
    # The first step trains on tokens of its own version, so that the ratio is 1; older weights made later ones' tokens.
    assert rows[0]["ratio/max"] == pytest.approx(1, abs=1e-4)
    assert max(row["ratio/max"] for row in rows) > 1.001


def test_the_resolved_recipe_runs_again(finished):
    directory, _ = finished
    done = rlmesh(str(directory / "recipe.yaml"), "--dry-run")
    assert done.returncode == 0
    assert done.stdout.startswith((directory / "recipe.yaml").read_text())


def test_a_run_directory_is_not_used_twice(finished):
    directory, _ = finished
    done = rlmesh("configs/blackjack.yaml", *SMALL, f"run.dir={directory}")
    assert done.returncode != 0
    assert "holds a run already" in done.stderr
    assert "Traceback" not in done.stderr


def evaluated(*arguments) -> dict[str, float]:
    """The metrics that `rlmesh eval` prints."""
    command = [sys.executable, "-m", "rlmesh.cli", "eval", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: float(value) for name, value in re.findall(r"^(eval/\S+): (\S+)$", done.stdout, re.MULTILINE)}


def test_eval_gives_the_value_that_the_run_had(finished, tmp_path):
    directory, _ = finished
    rows = [orjson.loads(line) for line in (directory / "metrics.jsonl").read_bytes().splitlines()]
    subprocess.run([sys.executable, "-m", "rlmesh.cli", "export", str(directory), str(tmp_path / "out")], check=True)
    for arguments in ([directory], [tmp_path / "out", "--recipe", "configs/blackjack.yaml"]):
        assert evaluated(*arguments) == {
            name: pytest.approx(value, abs=1e-3) for name, value in rows[-1].items() if name.startswith("eval/")
        }


@pytest.mark.slow
def test_eval_of_the_model_before_training(finished):
    directory, _ = finished
    assert evaluated(directory, "--step", 0)["eval/blackjack/invalid"] > 0.5  # random weights know no answer


def test_export_is_an_ordinary_model_folder(finished, tmp_path):
    directory, _ = finished
    subprocess.run(
        [sys.executable, "-m", "rlmesh.cli", "export", str(directory), str(tmp_path / "out")], check=True, timeout=60
    )
    model, tokenizer = (cls.from_pretrained(tmp_path / "out") for cls in (AutoModelForCausalLM, AutoTokenizer))
    chat = [{"role": "user", "content": "You have 14 (hard). Dealer shows 10. Hit or stand?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = tokenizer.convert_tokens_to_ids(["▁hit", tokenizer.eos_token])
    ids = torch.cat([prompt["input_ids"], torch.tensor([answer])], dim=1)
    chances = torch.softmax(model(ids).logits[0, -3:-1], -1)  # of what stands at the last two places
    states = json.loads((directory / "eval" / "blackjack.json").read_text())["states"]
    [state] = [s for s in states if (s["total"], s["soft"], s["dealer"]) == (14, False, 10)]
    # The exported weights are the last ones, which were evaluated.
    p_hit = chances[0, answer[0]] * chances[1, answer[1]]
    assert p_hit.item() == pytest.approx(state["p_hit"], abs=1e-5)


OTHER = [
    "model.tiny.num_layers=1",
    "model.tiny.tie_word_embeddings=true",
    "env.args.rules=no_bonus",
    "eval.args.rules=no_bonus",
    "reward.function=reward_functions.longer_is_better",
    "reward.args.bonus=0.5",
    "rollout.group_size=3",
    "placement.actors.rollout.replicas=2",
    "placement.actors.reward.replicas=2",
    "placement.actors.env.replicas=2",
    "policy.sleep=true",
    "replay_buffer.max_policy_age=0",
    "algorithm.minibatches=2",
]


def test_the_recipe_alone_changes_model_rules_reward_sizes_and_workers(tmp_path):
    """And policy and trainer work in turn, as they do when they share a GPU."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = rlmesh("configs/blackjack.yaml", *SMALL, *OTHER, f"run.dir={tmp_path}", env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [orjson.loads(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    assert all(row["off_policy/max"] == 0 and row["perf/both_busy_share"] == 0 for row in rows[:4])
    episodes = [orjson.loads(line) for line in (tmp_path / "rollouts" / "step_2.jsonl").read_bytes().splitlines()]
    assert len(episodes) == 18
    assert all(episode["reward"] == len(episode["turns"]) + 0.5 for episode in episodes)
    assert json.loads((tmp_path / "eval" / "blackjack.json").read_text())["rules"] == "no_bonus"
    logs = {p.name for p in (tmp_path / "logs").iterdir()}
    assert {f"{actor}_{i}.log" for actor in ("rollout", "reward", "env") for i in (0, 1)} <= logs
    config = json.loads((tmp_path / "checkpoints" / "step_4" / "model" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["tie_word_embeddings"]) == (1, True)


@pytest.mark.slow
def test_groups_without_signal_are_replaced_by_others(tmp_path):
    done = rlmesh(
        "configs/blackjack.yaml",
        *SMALL,
        "algorithm.replacements=30",
        "run.steps=3",
        "warm_start.steps=50",
        f"run.dir={tmp_path}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [orjson.loads(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()][:3]
    assert all(row["frac_reward_zero_std"] == 0 and row["groups"] == 6 for row in rows)
    assert sum(row["groups/replaced"] for row in rows) > 0 and all(row["off_policy/max"] <= 1 for row in rows)


@pytest.mark.slow
def test_a_run_whose_groups_never_have_signal_ends_and_says_so(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    constant = [
        "algorithm.replacements=3",
        "reward.function=reward_functions.takes_its_time",
        "eval.every=0",
        "run.warn_after_s=1",
    ]
    done = rlmesh("configs/blackjack.yaml", *SMALL, *constant, f"run.dir={tmp_path}", env=environment)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(
        r"^rlmesh: algorithm.replacements: group \d of step \d and the 3 that replaced it all", done.stderr, re.M
    )
    waits = r"step 0: generate waits for groups of the rollout workers, for \d s already; of the episodes wait .*\d+ for their rewards"
    assert re.search(waits, done.stdout)
