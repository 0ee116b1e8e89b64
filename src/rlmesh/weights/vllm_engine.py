"""vLLM's side of the weight sync: a weight-transfer engine, registered with vLLM's own factory.

It runs in vLLM's worker process, which is no actor: the PolicyServer gives it the name of a segment in shared memory and the
manifest. This file and `PolicyServer.fetch` are all that a new version of vLLM's interface touches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from rlmesh.weights.snapshot import Manifest, read_tensors
from rlmesh.weights.transport import map_segment

BACKEND = "rlmesh"


@dataclass
class InitInfo:
    """Nothing has to be agreed on beforehand."""


@dataclass
class UpdateInfo:
    """One version: the segment that holds its bytes, and its manifest."""

    segment: str
    manifest: dict[str, Any]


class SegmentEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads a version from shared memory. The bytes are checked before anything of the model is touched."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        pass  # vLLM prepares its layers here; that waits until the bytes are known to be right

    def receive_weights(self, update_info: UpdateInfo) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        manifest = Manifest.from_dict(update_info.manifest)
        weights = read_tensors(manifest, map_segment(Path(update_info.segment), manifest.size_bytes))
        initialize_layerwise_reload(self.model)
        self.model.load_weights(weights.items())
        finalize_layerwise_reload(self.model, self.model_config)

    def finish_weight_update(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


class WorkerExtension:
    """Named as vLLM's `worker_extension_cls`, so that the worker imports this module and with it the registration."""


WeightTransferEngineFactory.register_engine(BACKEND, SegmentEngine)
