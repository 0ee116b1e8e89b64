"""TorchStore 0.1.2 on Monarch 0.7.

Its actors mix sync and async endpoints, which Monarch refuses since; here every sync endpoint is wrapped into an async one.
Monarch checks this again wherever the classes are unpickled, so every process that uses a store imports this module (it
does so by unpickling a `WeightStore`).
"""

from __future__ import annotations

import functools
import inspect

import torchstore.api
from monarch._src.actor.endpoint import EndpointProperty
from torchstore.controller import Controller as _Controller
from torchstore.storage_volume import StorageVolume as _StorageVolume


def _asynchronous(method):
    @functools.wraps(method)
    async def call(self, *args, **kwargs):
        return method(self, *args, **kwargs)

    return call


for _actor in (_Controller, _StorageVolume):
    for _name in dir(_actor):
        _endpoint = getattr(_actor, _name)
        if isinstance(_endpoint, EndpointProperty) and not inspect.iscoroutinefunction(_endpoint._method):
            _endpoint._method = _asynchronous(_endpoint._method)


class Controller(_Controller):
    """TorchStore's controller; a class of this module, so that unpickling it imports the wrapping above."""


class StorageVolume(_StorageVolume):
    """TorchStore's storage volume."""


torchstore.api.Controller, torchstore.api.StorageVolume = Controller, StorageVolume
