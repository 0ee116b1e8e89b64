"""Model weights from the trainer to whoever runs the model."""

import os
from importlib import import_module

# Before TorchStore is imported, which would set it with a warning: a message may hold more than Monarch's default of some MB.
os.environ.setdefault("HYPERACTOR_CODEC_MAX_FRAME_LENGTH", str(2**40))


def __getattr__(name: str):
    # The options in `rlmesh.weights.config` are read without torch or Monarch, so the store is imported when asked for.
    places = {"WeightStore": "rlmesh.weights.store", "WeightsError": "rlmesh.weights.snapshot"}
    if name not in places:
        raise AttributeError(f"module 'rlmesh.weights' has no attribute {name!r}")
    return getattr(import_module(places[name]), name)
