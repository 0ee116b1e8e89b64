"""vLLM's side of the weight sync: a weight-transfer engine, registered with vLLM's own factory.

It runs in vLLM's worker process, which is no actor: the PolicyServer gives it the names of files in shared memory and the
manifest. This file and `PolicyServer.fetch` are all that a new version of vLLM's interface touches.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from rlmesh.weights.snapshot import Manifest, check_bytes, whole_tensors
from rlmesh.weights.transport import map_segment

BACKEND = "rlmesh"


@dataclass
class InitInfo:
    """Nothing has to be agreed on beforehand."""


@dataclass
class UpdateInfo:
    """One version: the files that hold its parts, and its manifest."""

    segments: list[str]
    manifest: dict[str, Any]


class SegmentEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads a version from shared memory, in two steps.

    `receive_weights` checks the bytes and touches nothing, so that it may run beside generation and may fail.
    `finish_weight_update` loads them: when that fails, the model is neither the old one nor the new one.
    """

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        self._weights: dict[str, torch.Tensor] = {}

    def receive_weights(self, update_info: UpdateInfo) -> None:
        manifest = Manifest.from_dict(update_info.manifest)
        sizes = [part.size_bytes for part in manifest.parts]
        buckets = [map_segment(Path(path), size) for path, size in zip(update_info.segments, sizes, strict=True)]
        check_bytes(manifest, buckets)
        self._weights = whole_tensors(manifest, buckets)

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        weights, self._weights = self._weights, {}
        initialize_layerwise_reload(self.model)
        self.model.load_weights(weights.items())
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


class WorkerExtension:
    """Named as vLLM's `worker_extension_cls`, so that the worker imports this module and with it the registration."""


WeightTransferEngineFactory.register_engine(BACKEND, SegmentEngine)
# At every update it warns of tables that are computed and never loaded; the PolicyServer checks that no weight is missing.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
