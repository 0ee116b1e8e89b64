"""What a store has: the versions, who still needs them, and the parts of those that are not whole yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.actor import Actor, endpoint

from rlmesh.weights.snapshot import Manifest, Part, WeightsError, check_whole

if TYPE_CHECKING:
    from rlmesh.weights.store import WeightStore

_NOTHING = -1


class Ledger(Actor):
    """Makes a version of its ranks' parts, and drops it once every registered reader has acknowledged a newer one.

    Its calls run one after the other, so that a version is made once and dropped once.
    """

    def __init__(self, store: WeightStore):
        self._store = store
        self._acknowledged: dict[str, int] = {}
        self._published: dict[int, Manifest] = {}
        self._pending: dict[int, dict[int, Part]] = {}
        self._probes: dict[int, dict] = {}  # of versions that are not whole yet

    @endpoint
    async def begin(self, version: int) -> set[str]:
        """A rank is about to write its part of `version`; returns the names of all buckets that are still needed.

        What is left of older versions that never became whole is given up: a rank died there.
        """
        if version in self._published:
            raise WeightsError(f"weights: version {version} was published already")
        for left in [number for number in self._pending if number < version]:
            self._probes.pop(left, None)
            await self._drop(self._pending.pop(left).values())
        parts = [part for manifest in self._published.values() for part in manifest.parts]
        parts += [part for pending in self._pending.values() for part in pending.values()]
        return {part.location.name for part in parts}

    @endpoint
    async def commit(self, version: int, rank: int, world_size: int, part: Part, probe: dict | None) -> None:
        """A rank's part is where readers can get it; the last one makes the version."""
        pending = self._pending.setdefault(version, {})
        if rank in pending:  # it died after this and began again
            await self._drop([pending[rank]])
        pending[rank] = part
        if probe is not None:
            self._probes[version] = probe
        if len(pending) < world_size:
            return
        del self._pending[version]
        parts = tuple(pending[rank] for rank in range(world_size))
        manifest = Manifest(version, parts, self._probes.pop(version, None))
        try:
            check_whole(manifest)
        except WeightsError:
            await self._drop(parts)
            raise
        await self._store.put_manifest(manifest)
        self._published[version] = manifest

    @endpoint
    async def versions(self) -> list[int]:
        """The versions that can be fetched."""
        return sorted(self._published)

    @endpoint
    async def register(self, reader: str) -> None:
        """From here on nothing is dropped that this reader has not gone past; one that starts again has gone past nothing."""
        self._acknowledged[reader] = _NOTHING

    @endpoint
    async def unregister(self, reader: str) -> None:
        """The reader needs nothing any more."""
        self._acknowledged.pop(reader, None)
        await self._drop_unneeded()

    @endpoint
    async def acknowledge(self, reader: str, version: int) -> None:
        """The reader has fetched `version`: what is older than any reader's is dropped."""
        if reader not in self._acknowledged:
            raise WeightsError(f"weights: '{reader}' acknowledges version {version}, but did not register")
        self._acknowledged[reader] = version
        await self._drop_unneeded()

    @endpoint
    async def drop_before(self, version: int) -> None:
        """Forget every older version, whoever may still want it."""
        await self._drop_before(version)

    async def _drop_unneeded(self) -> None:
        if self._acknowledged and self._published:
            await self._drop_before(min(*self._acknowledged.values(), max(self._published)))

    async def _drop_before(self, version: int) -> None:
        for number in [number for number in self._published if number < version]:
            await self._store.delete_manifest(number)
            await self._drop(self._published.pop(number).parts)

    async def _drop(self, parts) -> None:
        for part in parts:
            await self._store.transport.drop(part.location)
