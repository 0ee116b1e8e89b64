import subprocess
import sys

import pytest

from rlmesh.errors import RecipeError
from rlmesh.recipe import load_recipe
from rlmesh.recipe_checks import needed_actors


@pytest.fixture
def problems(tmp_path):
    def check(*overrides: str) -> list[str]:
        path = tmp_path / "recipe.yaml"
        path.write_text("")
        try:
            load_recipe(path, overrides)
        except RecipeError as error:
            return str(error).splitlines()
        return []

    return check


VALUES = [
    ("run.steps=0", "run.steps: 0 must be at least 1"),
    ("run.seed=-1", "run.seed: -1 must be at least 0"),
    ("rollout.temperature=0.005", "rollout.temperature: 0.005 must be at least 0.01"),
    ("policy.engine.gpu_memory_utilization=1.5", "policy.engine.gpu_memory_utilization: 1.5 must be at most 1"),
    ("algorithm.clip_low=1", "algorithm.clip_low: 1 must be below 1"),
    ("trainer.optimizer.lr=0", "trainer.optimizer.lr: 0 must be above 0"),
    ("trainer.optimizer.lr=.inf", "trainer.optimizer.lr: inf is not a finite number"),
    ("rollout.temperature=.nan", "rollout.temperature: nan is not a finite number"),
    ("trainer.optimizer.betas=[0.9,1.0]", "trainer.optimizer.betas: 0.9, 1.0 must be below 1"),
    ("placement.hosts.local.count=0", "placement.hosts.local.count: 0 must be at least 1"),
    ("placement.actors.policy.threads=0", "placement.actors.policy.threads: 0 must be at least 1"),
    (
        "trainer.dtype=bfloat",
        "trainer.dtype: 'bfloat' is not one of float32, bfloat16; did you mean 'bfloat16'?",
    ),
    ("weights.pause=stop", "weights.pause: 'stop' is not one of keep, wait"),
    ("algorithm.name=grop", "algorithm.name: 'grop' is not one of grpo; did you mean 'grpo'?"),
    ("policy.engine.block_size=24", "policy.engine.block_size: 24 is not one of 16, 32, 64, 128"),
    ("algorithm.kl_coef=high", "algorithm.kl_coef: 'high' is neither a number nor a schedule"),
    ("algorithm.kl_coef=true", "algorithm.kl_coef: True is neither a number nor a schedule"),
    ("algorithm.kl_coef={from: 1}", "algorithm.kl_coef: a schedule needs 'to'"),
    ("algorithm.kl_coef={from: 1, to: -1}", "algorithm.kl_coef: 1, -1 must be at least 0"),
    (
        "algorithm.kl_coef={from: 1, to: 0, oevr: 5}",
        "algorithm.kl_coef.oevr: unknown key of a schedule; did you mean 'over'?",
    ),
    ("algorithm.kl_coef={from: 1, to: 0, over: -5}", "algorithm.kl_coef: the schedule ends before it starts"),
    ("algorithm.kl_coef={from: 1, to: 0, after: 150}", "algorithm.kl_coef: the schedule starts at step 150"),
    ("warm_start={steps: 5, lr: {from: 1, to: 0.1, after: 5}}", "warm_start.lr: the schedule starts at step 5"),
]


@pytest.mark.parametrize("override, problem", VALUES, ids=[override for override, _ in VALUES])
def test_values(problems, override, problem):
    [line] = problems(override)
    assert line.startswith(problem)


NAMES = [
    ("algorithm.loss=gpro", "algorithm.loss: 'gpro' is none of grpo; did you mean 'grpo'?"),
    ("algorithm.loss=''", "algorithm.loss: '' is none of grpo; one of your own"),
    (
        "algorithm.advantage=group_men",
        "algorithm.advantage: 'group_men' is none of group_mean, group_norm; did you mean 'group_mean'?",
    ),
    ("eval.name=blackjac", "eval.name: 'blackjac' is none of blackjack; did you mean 'blackjack'?"),
    (
        "reward.function=rlmesh.rewards.episode_retrn",
        "reward.function: module 'rlmesh.rewards' has no 'episode_retrn'; did you mean 'episode_return'?",
    ),
    ("reward.function=episode_return", "reward.function: 'episode_return' is not an import path such as"),
    ("reward.function=.x.y", "reward.function: '.x.y' is not an import path such as"),
    ("reward.function=a..b", "reward.function: 'a..b' is not an import path such as"),
    ("reward.function=''", "reward.function: '' is not an import path such as"),
    (
        "reward.function=nowhere.at_all.f",
        "reward.function: cannot import 'nowhere.at_all.f': there is no module 'nowhere.at_all'",
    ),
    ("reward.function=rlmesh.errors.inner.f", "reward.function: cannot import 'rlmesh.errors.inner.f': there is no"),
    ("reward.function=__main__.f", "reward.function: '__main__.f' cannot be imported by the actors' own processes"),
    (
        "warm_start.data=blackjack_env.warm_start.random_pla",
        "warm_start.data: module 'blackjack_env.warm_start' has no 'random_pla'; did you mean 'random_play'?",
    ),
    ("env.app=blackjack_env.sever.app:app", "env.app: cannot import 'blackjack_env.sever.app.app': there is no module"),
    ("env.app=blackjack_env.server.app", "env.app: 'blackjack_env.server.app' is not an application such as"),
]


@pytest.mark.parametrize("override, problem", NAMES, ids=[override for override, _ in NAMES])
def test_names_and_import_paths(problems, override, problem):
    [line] = problems(override)
    assert line.startswith(problem)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that must not be imported, on the path."""
    folder = tmp_path / "never_import_me"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.parametrize(
    "source, name",
    [
        ("def f(episode): ...", "f"),
        ("async def f(episode): ...", "f"),
        ("class F: ...", "F"),
        ("a, (b, c) = 1, (2, 3)", "c"),
        ("f: int = 1", "f"),
        ("from math import sin as f", "f"),
        ("import os.path", "os"),
        ("from math import *", "anything"),
        ("if True:\n    f = 1", "f"),
        ("def __getattr__(name): ...", "anything"),
    ],
)
def test_modules_are_read_not_imported(problems, package, source, name):
    (package / "rewards.py").write_text(source)
    assert problems(f"reward.function=never_import_me.rewards.{name}") == []


def test_a_module_with_a_syntax_error_is_named(problems, package):
    (package / "broken.py").write_text("x = 1\ndef f(:\n")
    [line] = problems("reward.function=never_import_me.broken.f")
    assert line.startswith("reward.function: cannot import 'never_import_me.broken.f'") and "broken.py, line 2" in line


COMBINATIONS = [
    (["rollout.group_size=1"], "rollout.group_size: a group of 1"),
    (["rollout.max_tokens=256"], "rollout.max_tokens: 256 leaves no room for a prompt in model.max_length = 256"),
    (["trainer.pack_length=128"], "trainer.pack_length: a row of 128 tokens cannot hold"),
    (["trainer.optimizer.betas=[0.9]"], "trainer.optimizer.betas: two numbers are needed, not 1"),
    (
        ["model.tiny.num_heads=3", "model.tiny.num_kv_heads=2"],
        "model.tiny.num_kv_heads: 2 does not divide model.tiny.num_heads = 3",
    ),
    (
        ["trainer.parallelism.tensor_parallel=2", "placement.actors.trainer.procs=2"],
        "trainer.parallelism.tensor_parallel: 2 ranks cannot share model.tiny.num_kv_heads = 1",
    ),
    (
        ["policy.engine.max_num_batched_tokens=100"],
        "policy.engine.max_num_batched_tokens: 100 tokens in one pass cannot hold",
    ),
    (["algorithm.minibatches=33"], "algorithm.minibatches: 33 parts cannot be made of rollout.groups_per_step = 32"),
    (["eval.name=blackjack"], "rollout.history: eval.name 'blackjack' reads one probability for each state"),
    (["env.app=''"], "env.app: '' is not an application"),
    (["run.name=''"], "run.name: it must not be empty"),
    (["model.source=''"], "model.source: it must not be empty"),
    (
        ["trainer.parallelism.data_parallel_shard=2"],
        "placement.actors.trainer.procs: trainer.parallelism asks for 2 ranks, and there are 1 procs; set it to 2",
    ),
    (["placement.actors.trainer.replicas=2"], "placement.actors.trainer.replicas: there is one trainer; use trainer.p"),
    (
        ["placement.actors.ref_model.procs=2"],
        "placement.actors.ref_model.procs: a ref_model is one process; use placement.actors.ref_model.replicas for more",
    ),
    (
        ["placement.hosts.local.gpus=4", "placement.actors.trainer.gpus=2"],
        "placement.actors.trainer.gpus: a process of it uses one GPU",
    ),
    (["env.url=http://127.0.0.1:80"], "env.url: 'http://127.0.0.1:80' is not the address of a server, such as ws://"),
    (["env.url=ws://127.0.0.1:99999"], "env.url: 'ws://127.0.0.1:99999' is not the address of a server"),
    (["model.source=~nobody_here/model"], "model.source: '~nobody_here/model': Could not determine home directory."),
    (["placement.actors.replay_buffer.replicas=2"], "placement.actors.replay_buffer.replicas: there is one replay"),
    (["placement.actors.policy.procs=2"], "placement.actors.policy.procs: a policy is one process; use placement.act"),
    (
        ["placement.actors.policy.hosts=gpus"],
        "placement.actors.policy.hosts: there is no host mesh 'gpus' in placement.hosts (local)",
    ),
    (
        ["placement.actors.policy.gpus=1"],
        "placement.actors.policy.gpus: host 0 of 'local' would need 1 GPUs and has 0 (placement.hosts.local.gpus)",
    ),
    (["placement.hosts.local.count=2"], "placement.hosts.local.count: job 'local' is this one machine; set it to 1"),
    (
        ["placement.hosts={local: {gpus: 1}, more: {gpus: 1}}"],
        "placement.hosts.more.gpus: job 'local' runs every host on this machine, and its GPUs would be given to 2 hosts",
    ),
    (
        ["placement.job=process", "placement.hosts.local={count: 3, gpus: 1}"],
        "placement.hosts.local.gpus: job 'process' runs every host on this machine",
    ),
    (
        ["placement.hosts.local.gpus=1", "placement.actors.policy.gpus=1", "placement.actors.trainer.gpus=1"],
        "placement.actors.trainer.gpus: host 0 of 'local' would need 2 GPUs and has 1",
    ),
]


@pytest.mark.parametrize("overrides, problem", COMBINATIONS, ids=[overrides[0] for overrides, _ in COMBINATIONS])
def test_combinations(problems, overrides, problem):
    [line] = problems(*overrides)
    assert line.startswith(problem)


def test_problems_of_a_kind_are_shown_at_once(problems):
    assert len(problems("run.steps=0", "trainer.dtype=int8", "rollout.group_size=0")) == 3
    assert len(problems("rollout.group_size=1", "algorithm.loss=gpro", "placement.actors.policy.gpus=1")) == 3


@pytest.mark.parametrize(
    "overrides",
    [
        ["replay_buffer.max_policy_age=0"],  # strictly on-policy
        ["algorithm.kl_coef={from: 0.3, to: 0.0}"],
        ["rollout.group_size=1", "algorithm.advantage=rlmesh.losses.advantages.group_norm"],
        ["model.source=some/folder", "trainer.parallelism.tensor_parallel=2", "placement.actors.trainer.procs=2"],
        ["placement.job=process", "placement.hosts={local: {count: 3}, gpu: {gpus: 2}}"],
        ["env.app=''", "env.url=ws://localhost:8000"],
        [
            "placement.hosts={local: {}, gpu: {gpus: 8}}",
            "placement.actors.policy={hosts: gpu, replicas: 4, gpus: 2}",
        ],
    ],
)
def test_what_only_looks_wrong_is_allowed(problems, overrides):
    assert problems(*overrides) == []


def test_the_reference_model_runs_only_when_the_loss_has_a_kl_term(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("")
    for kl_coef, needed in (("0", False), ("0.1", True), ("{from: 0, to: 0.1}", True), ("{from: 0, to: 0}", False)):
        recipe = load_recipe(path, [f"algorithm.kl_coef={kl_coef}"])
        assert ("ref_model" in needed_actors(recipe)) == needed


def test_checking_a_recipe_imports_nothing_heavy(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "eval: {name: blackjack}\nrollout: {history: none}\nreward: {function: torch.nn.functional.relu}"
    )
    code = (
        "import sys; from rlmesh.recipe import load_recipe; load_recipe(sys.argv[1]);"
        "print(sorted({'torch', 'vllm', 'monarch', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "recipe.yaml")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_tracker_that_is_not_installed_is_named(problems, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert problems() == []
    assert problems("metrics.wandb=true", "metrics.trackio=true") == [
        "metrics.wandb: the package 'wandb' is not installed"
    ]


def test_batch_invariant_kernels_need_a_gpu_and_torchtitans_their_package(problems):
    for key in ("policy.engine.batch_invariant", "trainer.batch_invariant"):
        assert f"{key}: these kernels need a GPU, and the actor has none (placement.actors)" in problems(f"{key}=true")
    on_gpus = [
        "placement.hosts.local.gpus=2",
        *(f"placement.actors.{actor}.gpus=1" for actor in ("policy", "trainer")),
    ]
    assert problems("policy.engine.batch_invariant=true", *on_gpus) == []
    assert problems("trainer.batch_invariant=true", *on_gpus) == [
        "trainer.batch_invariant: the package 'batch_invariant_ops' is not installed"
    ]
