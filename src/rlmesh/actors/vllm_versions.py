"""Which policy version makes each token of the requests that run in vLLM's engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

Counts = Mapping[int, int]  # sample of a request -> tokens that it had


class Admission:
    """Lets requests into the engine between updates, and keeps where in each of them the version changed.

    Invariant: while an update is going on no request enters, so that a request begins with one version and every token after
    the place that is noted here was made by the new one.

    >>> admission = Admission()
    >>> async with admission.enter("7"):                       # doctest: +SKIP
    ...     queue = await engine.add_request("7", prompt, sampling)
    >>> async with admission.update(1):                        # doctest: +SKIP
    ...     admission.note({"0_7-ab12": 3})                      # the engine stands still: sample 0 has 3 tokens
    >>> admission.leave("7").of(0, num_tokens=5)               # doctest: +SKIP
    [0, 0, 0, 1, 1]
    """

    def __init__(self):
        self.version = 0
        self._open = asyncio.Event()
        self._open.set()
        self._entering = 0
        self._none_entering = asyncio.Event()
        self._none_entering.set()
        self._requests: dict[str, Versions] = {}

    @asynccontextmanager
    async def enter(self, name: str) -> AsyncIterator[None]:
        """For the block in which the request is given to the engine."""
        await self._open.wait()
        self._entering += 1
        self._none_entering.clear()
        self._requests[name] = Versions(self.version)
        try:
            yield
        except BaseException:
            self.leave(name)
            raise
        finally:
            self._entering -= 1
            if self._entering == 0:
                self._none_entering.set()

    def leave(self, name: str) -> Versions:
        """The request has ended."""
        return self._requests.pop(name)

    @asynccontextmanager
    async def update(self, version: int) -> AsyncIterator[None]:
        """For the block in which the engine takes the weights of `version`, which is the version if the block ends well."""
        self._open.clear()
        try:
            await self._none_entering.wait()
            yield
            self.version = version
        finally:
            self._open.set()

    def note(self, counts: Mapping[str, int], version: int) -> None:
        """The tokens that each sample of a running request had when its engine stood still, by vLLM's names of them."""
        by_request: dict[str, dict[int, int]] = {}
        for internal, count in counts.items():
            request, sample = _parse(internal)
            by_request.setdefault(request, {})[sample] = count
        for request, samples in by_request.items():
            if request in self._requests:
                self._requests[request].changes.append((version, samples))


class Versions:
    """The version that a request began with, and each later one with the tokens that its samples had by then."""

    def __init__(self, first: int):
        self.first, self.changes = first, []

    def of(self, sample: int, num_tokens: int) -> list[int]:
        """The version of each token of a sample; one that is not in a change had ended before it."""
        versions = [self.first] * num_tokens
        for version, counts in self.changes:
            start = counts.get(sample, num_tokens)
            versions[start:] = [version] * (num_tokens - start)
        return versions


def _parse(internal: str) -> tuple[str, int]:
    """(request, sample) of vLLM's own name: `7-ab12` for a request of one sample, `2_7-ab12` for sample 2 of several."""
    sample, separator, rest = internal.partition("_")
    return (rest if separator else internal).rpartition("-")[0], int(sample) if separator else 0
