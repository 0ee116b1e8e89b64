"""Joining torch.distributed from inside an actor."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist

from rlmesh.actors.launch import LOOPBACK


def join_process_group() -> None:
    """Join the process group of the actor's ranks: as the mesh set it up, or alone where nothing did.

    The mesh sets RANK, WORLD_SIZE and MASTER_*; an actor that is used by itself is the only rank.
    """
    if dist.is_initialized():
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if (
        world_size == 1 or os.environ["MASTER_ADDR"] == socket.gethostname()
    ):  # all ranks are here, as with both kinds of job that there are
        for name, interface in LOOPBACK.items():
            os.environ.setdefault(name, interface)
        # One rank needs no address: a store in memory, and no port that another program could hold.
        store = dist.HashStore() if world_size == 1 else _loopback_store(rank, world_size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    else:
        dist.init_process_group(backend)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def _loopback_store(rank: int, world_size: int) -> dist.TCPStore:
    """The ranks' store at MASTER_PORT; the one that torch makes by itself listens on every interface."""
    address, port = "127.0.0.1", int(os.environ["MASTER_PORT"])
    if rank > 0:
        return dist.TCPStore(address, port, world_size)
    listener = socket.create_server((address, port))
    return dist.TCPStore(address, port, world_size, is_master=True, master_listen_fd=listener.detach())
