"""An actor that reads weights in a process of its own."""

from monarch.actor import Actor, endpoint


class Reader(Actor):
    @endpoint
    async def fetch(self, store, version):
        return await store.fetch(version)
