"""Joining torch.distributed from inside an actor."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist


def join_process_group() -> None:
    """Join the process group of the actor's ranks: as the mesh set it up, or alone where nothing did.

    The mesh sets RANK, WORLD_SIZE and MASTER_*; an actor that is used by itself is the only rank.
    """
    if dist.is_initialized():
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        # One rank needs no address: a store in memory, and no port that another program could hold.
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    else:
        if os.environ["MASTER_ADDR"] == socket.gethostname():  # all ranks are here, whatever the name resolves to
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(backend)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
