"""What listens does so on loopback only, what comes from outside executes nothing, and secrets stay in the environment."""

import ipaddress
import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch.distributed.checkpoint as dcp
from live_run import LiveRun

from rlmesh.actors.process_group import join_process_group
from rlmesh.checkpoint import written_aside
from rlmesh.errors import RecipeError, RLMeshError
from rlmesh.models.config import TrainerConfig
from rlmesh.models.folder import check_folder
from rlmesh.models.learner import Learner
from rlmesh.models.safe_load import load_state
from rlmesh.recipe import load_recipe
from rlmesh.rollout.render import Renderer
from rlmesh.run_directory import RunDirectory
from rlmesh.show import read_rollouts

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "security.md"
SECRET = "what-nobody-may-read-4711"
RECIPE = [
    "configs/blackjack.yaml",
    "run.steps=2",
    "rollout.groups_per_step=6",
    "rollout.group_size=4",
    "warm_start.steps=2",
    "warm_start.batch_size=64",
    "eval.name=''",
    "metrics.rollouts_every=1",
    "placement.actors.trainer.procs=2",  # several ranks meet at an address
    "trainer.parallelism.data_parallel_shard=2",
]


def documented() -> set[str]:
    """Names of the processes that listen on TCP, by the documentation's table."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|") and "`127.0.0.1`" in line]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[2])}


def test_a_run_listens_on_loopback_and_writes_no_secret(tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "MY_SECRET"):
        monkeypatch.setenv(name, SECRET)
    run = LiveRun(*RECIPE, f"run.dir={tmp_path / 'run'}")
    try:
        run.wait_for("step 0 | ")
        listening = [
            (" ".join(process.cmdline()), connection.laddr.ip)
            for process in run.processes()
            for connection in process.net_connections("tcp")
            if connection.status == "LISTEN"
        ]
        assert run.end() == 0, run.said
    finally:
        run.clean_up()
    assert listening and all(ipaddress.ip_address(address).is_loopback for _, address in listening), listening
    kinds = documented()
    found = {next((kind for kind in kinds if kind in command), command) for command, _ in listening}
    assert found == kinds
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"recipe.yaml", "metrics.jsonl", "events.jsonl", "trainer_0.log", "step_0.jsonl"} <= {f.name for f in files}
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert SECRET not in run.said


JOINED = """
import psutil
from rlmesh.actors.process_group import join_process_group
join_process_group()
print(*{listening.laddr.ip for listening in psutil.Process().net_connections("tcp")})
"""


def test_a_rank_listens_on_loopback_wherever_the_hosts_name_leads(tmp_path):
    """gloo would take the address of that name: on most machines one that others reach."""
    own = [a.address for of in psutil.net_if_addrs().values() for a in of if a.family == socket.AF_INET]
    others_reach = [address for address in own if not ipaddress.ip_address(address).is_loopback]
    in_namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{(others_reach or ['?'])[0]} {socket.gethostname()}\n")
    mount = f"mount --bind {tmp_path / 'hosts'} /etc/hosts"
    if not others_reach or subprocess.run([*in_namespace, mount], capture_output=True).returncode:
        pytest.skip("this machine has no other address, or lets nobody give its name another one")
    python = [sys.executable, "-c", JOINED]
    done = subprocess.run([*in_namespace, f'{mount}; exec "$0" "$@"', *python], capture_output=True, text=True)
    assert done.stdout == "127.0.0.1\n", done.stderr


@pytest.mark.parametrize("args", ["env.args.key=${oc.env:MY_SECRET}", "env.args.a={b: ['x ${ oc.env:MY_SECRET}']}"])
def test_a_recipe_takes_nothing_from_the_environment(args, monkeypatch):
    monkeypatch.setenv("MY_SECRET", SECRET)
    with pytest.raises(RecipeError, match=r"env\.args\.\S+: .* takes nothing from the environment") as refused:
        load_recipe("configs/blackjack.yaml", [args])
    assert SECRET not in str(refused.value)


class Malicious:
    """Unpickled without limits, it makes the folder `mark`."""

    def __init__(self, mark: Path):
        self._mark = mark

    def __reduce__(self):
        return os.makedirs, (str(self._mark),)


@pytest.fixture
def malicious(tmp_path):
    """It must not have been executed at the end of the test; that it can be is seen first."""
    pickle.loads(pickle.dumps(Malicious(tmp_path / "can be")))
    assert (tmp_path / "can be").exists()
    yield Malicious(tmp_path / "executed")
    assert not (tmp_path / "executed").exists()


def test_a_checkpoints_metadata_executes_nothing(untied, malicious, tmp_path):
    join_process_group()
    learner = Learner(untied, TrainerConfig(pack_length=64), temperature=1.0)
    learner.save(tmp_path)
    learner.load(tmp_path)
    (tmp_path / "optimizer" / ".metadata").write_bytes(pickle.dumps(malicious))
    with pytest.raises(RLMeshError, match=r"optimizer cannot be loaded: .*makedirs, which is no part of a checkpoint"):
        learner.load(tmp_path)


def test_a_checkpoints_numbers_execute_nothing(malicious, tmp_path):
    join_process_group()
    dcp.save({"optimizer": {"lr": malicious}}, checkpoint_id=str(tmp_path / "optimizer"))
    with pytest.raises(RLMeshError, match=r"optimizer cannot be loaded: .*optimizer\.lr is more than a number"):
        load_state({"optimizer": {"lr": 0.1}}, tmp_path / "optimizer")


async def test_exporting_from_a_run_of_elsewhere_executes_nothing(untied, malicious, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("{}")
    async with written_aside(tmp_path / "run" / "checkpoints" / "step_1") as folder:
        shutil.copytree(untied, folder / "model")
        (folder / "optimizer").mkdir()
        for name in ("model/pytorch_model.bin", "optimizer/.metadata"):
            (folder / name).write_bytes(pickle.dumps(malicious))
    assert RunDirectory(tmp_path / "run").export(tmp_path / "out") == 1
    check_folder(tmp_path / "out")


def test_weights_that_are_pickled_are_refused(untied, malicious, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(untied, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(malicious))
    with pytest.raises(RecipeError, match="has no weights"):
        check_folder(folder)


def test_code_in_a_model_folder_is_not_executed(untied, malicious, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(untied, folder)
    (folder / "own.py").write_text(f"import pickle\npickle.loads({pickle.dumps(malicious)!r})\nclass Own: pass\n")
    path = folder / "tokenizer_config.json"
    config = {
        **json.loads(path.read_text()),
        "tokenizer_class": "Own",
        "auto_map": {"AutoTokenizer": ["own.Own", None]},
    }
    path.write_text(json.dumps(config))
    assert Renderer(folder).first_prompt("You have 14")


def test_rollouts_and_recipes_execute_nothing(malicious, tmp_path):
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step_0.jsonl").write_bytes(pickle.dumps(malicious))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"run: !!python/object/apply:os.makedirs ['{tmp_path / 'executed'}']")
    with pytest.raises(RLMeshError, match="it is not an episode"):
        read_rollouts(tmp_path, None)
    with pytest.raises(RecipeError, match="not valid YAML"):
        load_recipe(recipe)
