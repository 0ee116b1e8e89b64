import pytest

from rlmesh.errors import RecipeError
from rlmesh.mesh.config import ActorPlacement, ActorsConfig, HostsConfig, PlacementConfig
from rlmesh.mesh.plan import plan_placement
from rlmesh.mesh.procs import visible_gpu


def placement(hosts, **actors):
    return PlacementConfig(job="process", hosts=hosts, actors=ActorsConfig(**actors))


def test_gpus_are_given_once():
    plan = plan_placement(
        placement(
            {"gpu": HostsConfig(count=1, gpus=4)},
            policy=ActorPlacement(hosts="gpu", replicas=2, gpus=1),
            trainer=ActorPlacement(hosts="gpu", procs=2, gpus=1),
        ),
        ["policy", "trainer"],
    )
    assert [replica.gpus for replica in plan["policy"]] == [(((0,),),), (((1,),),)]
    assert plan["trainer"][0].gpus == (((2,), (3,)),)


def test_more_gpus_than_the_hosts_have_are_refused():
    config = placement({"gpu": HostsConfig(count=2, gpus=1)}, policy=ActorPlacement(hosts="gpu", replicas=3, gpus=1))
    with pytest.raises(RecipeError, match=r"placement.actors.policy.gpus: host 0 of 'gpu' would need 2 GPUs and has 1"):
        plan_placement(config, ["policy"])


def test_an_unknown_host_mesh_is_named():
    config = placement({"cpu": HostsConfig()}, policy=ActorPlacement(hosts="gpu"))
    with pytest.raises(RecipeError, match=r"placement.actors.policy.hosts: there is no host mesh 'gpu' .*\(cpu\)"):
        plan_placement(config, ["policy"])


def test_one_replica_spreads_over_its_hosts():
    config = placement({"gpu": HostsConfig(count=2, gpus=8)}, trainer=ActorPlacement(hosts="gpu", procs=16, gpus=1))
    [replica] = plan_placement(config, ["trainer"])["trainer"]
    assert replica.hosts == (0, 1)
    assert replica.procs_per_host == 8
    assert replica.gpus[1][7] == (7,)


def test_replicas_take_the_hosts_in_turn():
    config = placement({"cpu": HostsConfig(count=2)}, rollout=ActorPlacement(hosts="cpu", replicas=3))
    assert [replica.hosts for replica in plan_placement(config, ["rollout"])["rollout"]] == [(0,), (1,), (0,)]


def test_an_actor_can_share_the_gpus_of_another():
    config = placement(
        {"gpu": HostsConfig(gpus=3)},
        trainer=ActorPlacement(hosts="gpu", gpus_of="policy"),
        policy=ActorPlacement(hosts="gpu", gpus=2),
        ref_model=ActorPlacement(hosts="gpu", gpus=1),
    )
    plan = plan_placement(config, ["trainer", "policy", "ref_model"])
    assert plan["trainer"] == plan["policy"]
    assert (plan["policy"][0].gpus, plan["ref_model"][0].gpus) == ((((0, 1),),), (((2,),),))


@pytest.mark.parametrize(
    ("guest", "complaint"),
    [
        ({"gpus_of": "trainer"}, "'trainer' is no actor with GPUs of its own; such actors are policy"),
        ({"gpus_of": "policy", "gpus": 1}, "leave placement.actors.trainer.gpus at 0"),
        (
            {"gpus_of": "policy", "hosts": "local"},
            "placement.actors.trainer.hosts is 'local' and that of 'policy' is 'gpu'",
        ),
        ({"gpus_of": "policy", "procs": 2}, "placement.actors.trainer.procs is 2 and that of 'policy' is 1"),
    ],
)
def test_sharing_that_cannot_be_is_refused(guest, complaint):
    hosts = {"gpu": HostsConfig(gpus=1), "local": HostsConfig()}
    config = placement(
        hosts, policy=ActorPlacement(hosts="gpu", gpus=1), trainer=ActorPlacement(**{"hosts": "gpu", **guest})
    )
    with pytest.raises(RecipeError, match=f"placement.actors.trainer.gpus_of: .*{complaint}"):
        plan_placement(config, ["policy", "trainer"])


@pytest.mark.parametrize(
    "given, names", [(None, ["0", "1"]), ("4,5", ["4", "5"]), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"])]
)
def test_a_plan_counts_the_gpus_that_the_run_was_given(monkeypatch, given, names):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert [visible_gpu(number) for number in (0, 1)] == names
