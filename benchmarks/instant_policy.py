"""A stand-in for the PolicyServer that answers at once, for benchmarks of what is around it."""

from __future__ import annotations

from typing import Any

from monarch.actor import Actor, concurrent_endpoint

from rlmesh.actors.service import Service
from rlmesh.mesh.actor_mesh import ActorMesh
from rlmesh.rollout.types import Completion, GenerateRequest


class InstantPolicy(Actor):
    """Every completion is the same tokens, as many as may be, of version 0."""

    def __init__(self, *_: Any):
        """Takes the PolicyServer's arguments and needs none."""

    @concurrent_endpoint
    async def setup(self, store: Any = None) -> None:
        """Nothing to start."""

    @concurrent_endpoint
    async def generate(self, requests: list[GenerateRequest]) -> list[list[Completion]]:
        """`n` completions for each request, of printable tokens."""
        return [[_completion(request.max_tokens) for _ in range(request.n)] for request in requests]

    @concurrent_endpoint
    async def close(self) -> None:
        """Nothing to stop."""


class InstantMesh(ActorMesh):
    """The recipe's actors with an InstantPolicy in the PolicyServer's place; start it without a trainer."""

    def _spawn(self, actor: str, cls: type[Actor], *args: Any, **options: Any) -> Service | None:
        return super()._spawn(actor, InstantPolicy if actor == "policy" else cls, *args, **options)


def _completion(count: int) -> Completion:
    tokens = [4 + place % 10 for place in range(count)]
    return Completion(tokens, [-1.0] * count, "length", [0] * count)
