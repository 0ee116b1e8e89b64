"""Actors that do nothing before their `setup`."""

from __future__ import annotations

from typing import Any

from monarch.actor import Actor

from rlmesh.errors import ActorFailure


class NotSetUp(ActorFailure, AttributeError):
    """An endpoint was called before `setup`."""


class NeedsSetup(Actor):
    """What `setup` makes is asked for by its name, and missing before: the caller is told what to do.

    >>> class Echo(NeedsSetup):
    ...     @endpoint                                               # doctest: +SKIP
    ...     async def setup(self): self._voice = str.upper
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSetUp(f"{type(self).__name__}: call setup first (it has no {name} yet)")
