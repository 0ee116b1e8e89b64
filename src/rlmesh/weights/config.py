"""Options of the weight sync. No heavy imports here."""

from __future__ import annotations

from dataclasses import dataclass

from rlmesh.schema import option

DTYPES = ("float32", "bfloat16", "float16")  # in which weights can travel


@dataclass
class WeightsConfig:
    """How weights travel from the trainer to the policy server."""

    transport: str = option(
        "auto",
        "how the bytes go: `auto` (shared memory on the trainer's host, RDMA to others), `shared_memory`, `rdma` (Monarch's "
        "RDMABuffer; over TCP where there is no ibverbs), or `torchstore`",
        choices=("auto", "shared_memory", "rdma", "torchstore"),
    )
    transfer_dtype: str = option(
        "", "numeric type in which the numbers travel (empty: as the trainer has them)", choices=("", *DTYPES)
    )
    verify_every: int = option(
        1,
        "versions between two in which the policy server scores a fixed sequence and compares it with the trainer (0: never)",
        ge=0,
    )
    pause: str = option(
        "keep",
        "running requests at an update: `keep` (go on with the new weights), `wait` (finish first), `abort` (begin anew)",
        choices=("keep", "wait", "abort"),
    )
