"""A writer of several ranks on gloo, whose tensors lie over the ranks as FSDP2, HSDP and tensor parallelism lay them."""

import os

import torch
import torch.distributed as dist
from monarch.actor import Actor, current_rank, endpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    """Uneven over 2 and over 4 ranks, and smaller than 4 in places, so that some shards are empty."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)
        self.norm, self.few = nn.LayerNorm(6), nn.Parameter(torch.randn(3, 5))


def full_state(seed: int) -> dict[str, torch.Tensor]:
    """The whole tensors, the same in every process."""
    torch.manual_seed(seed)
    return {name: tensor.clone() for name, tensor in Block().state_dict().items()}


class ShardedWriter(Actor):
    @endpoint
    async def setup(self, port: int, replicate: int, shard: int, tensor: int) -> None:
        rank, size = current_rank().rank, replicate * shard * tensor
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
        mesh = init_device_mesh("cpu", (replicate, shard, tensor), mesh_dim_names=("replicate", "shard", "tensor"))
        torch.manual_seed(0)
        self._module = Block()
        if tensor > 1:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(self._module, mesh["tensor"], plan)
        if replicate * shard > 1:
            fully_shard(self._module, mesh=mesh["replicate", "shard"] if replicate > 1 else mesh["shard"])

    @endpoint
    async def publish(self, store, version: int) -> None:
        state = self._module.state_dict()
        await store.publish(version, {**state, "head.weight": state["up.weight"]})

    @endpoint
    async def fetch_into(self, store) -> bool:
        """Spoil this rank's shards, read them again, and say whether they are what they were."""
        state = self._module.state_dict()
        before = {name: _local(tensor).clone() for name, tensor in state.items()}
        for tensor in state.values():
            _local(tensor).zero_()
        await store.fetch_into(state)
        return all(torch.equal(_local(tensor), before[name]) for name, tensor in state.items())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor.detach()
