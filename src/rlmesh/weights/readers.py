"""Who reads the weights, and how far each reader has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.actor import Actor, endpoint

from rlmesh.weights.snapshot import WeightsError

if TYPE_CHECKING:
    from rlmesh.weights.store import WeightStore

_NOTHING = -1


class ReaderLedger(Actor):
    """The registered readers of a store and the version that each acknowledged last; drops what none of them needs.

    Its calls run one after the other, so that no version is dropped twice.
    """

    def __init__(self, store: WeightStore):
        self._store = store
        self._acknowledged: dict[str, int] = {}

    @endpoint
    async def register(self, reader: str) -> None:
        """From here on nothing is dropped that this reader has not gone past; one that starts again has gone past nothing."""
        self._acknowledged[reader] = _NOTHING

    @endpoint
    async def acknowledge(self, reader: str, version: int) -> None:
        """The reader has fetched `version`: what is older than any reader's is dropped."""
        if reader not in self._acknowledged:
            raise WeightsError(f"weights: '{reader}' acknowledges version {version}, but did not register")
        self._acknowledged[reader] = version
        await self._store.drop_before(min(self._acknowledged.values()))
