"""Loading what `torch.distributed.checkpoint` saved without executing anything that it says.

Its reader unpickles `.metadata`, and its planner whatever is no tensor, without limits: whoever wrote a checkpoint could have any
code run by whoever loads it. Here only what such files are made of is unpickled.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, FileSystemReader, Metadata
from torch.distributed.checkpoint._nested_dict import set_element  # what DefaultLoadPlanner itself uses
from torch.distributed.checkpoint.planner import ReadItem

from rlmesh.errors import RLMeshError
from rlmesh.imports import described

_METADATA_PARTS = (
    *("Metadata", "MetadataIndex", "StorageMeta", "BytesStorageMetadata", "TensorStorageMetadata"),
    *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
)
# Module and name of all that a `.metadata` may refer to; nothing of it does more than hold values.
_ALLOWED = {
    *(("torch.distributed.checkpoint.metadata", name) for name in _METADATA_PARTS),
    *(("torch", name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("pathlib", "PosixPath"),
}


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is no part of a checkpoint")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    def read_metadata(self) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            return _MetadataUnpickler(file).load()


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            found = torch.load(value, weights_only=True)
        except pickle.UnpicklingError:  # its text tells how to execute it all the same
            raise pickle.UnpicklingError(f"{name} is more than a number") from None
        set_element(self.original_state_dict, self.mappings[name], found)


def load_state(state: dict[str, Any], folder: Path) -> None:
    """Fill `state` from what `dcp.save(state, checkpoint_id=folder)` wrote, on any number of ranks; every rank must call it.

    Raises: RLMeshError for a folder that holds something else.
    """
    try:
        dcp.load(state, storage_reader=_Reader(folder), planner=_Planner())
    except CheckpointException as error:  # no Exception: it would end the process
        failure, _ = next(iter(error.failures.values()))
        raise RLMeshError(f"{folder} cannot be loaded: {described(failure)}") from error
