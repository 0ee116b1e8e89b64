"""Model weights from the trainer to whoever runs the model."""

from importlib import import_module


def __getattr__(name: str):
    # The options in `rlmesh.weights.config` are read without torch or Monarch, so the store is imported when asked for.
    places = {"WeightStore": "rlmesh.weights.store", "WeightsError": "rlmesh.weights.snapshot"}
    if name not in places:
        raise AttributeError(f"module 'rlmesh.weights' has no attribute {name!r}")
    return getattr(import_module(places[name]), name)
