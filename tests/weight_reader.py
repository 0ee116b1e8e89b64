"""An actor that reads and writes weights in a process of its own."""

from monarch.actor import Actor, endpoint


class Reader(Actor):
    @endpoint
    async def fetch(self, store, version):
        return await store.fetch(version)

    @endpoint
    async def publish(self, store, version, weights):
        await store.publish(version, weights)
