"""ReferenceModel: the trainer's model code with weights that stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from monarch.actor import endpoint

from rlmesh.actors.config import ReferenceModelConfig
from rlmesh.actors.needs_setup import NeedsSetup
from rlmesh.errors import ActorFailure
from rlmesh.models.config import TrainerConfig
from rlmesh.rollout.batch import Batch

if TYPE_CHECKING:
    from rlmesh.weights import WeightStore


class ReferenceModel(NeedsSetup):
    """Logprobs of given tokens under frozen weights: those of the model folder, of a published version, or saved ones.

    >>> reference = proc_mesh.spawn("ref_model", ReferenceModel, ReferenceModelConfig(), "model", 64, 1.0)  # doctest: +SKIP
    >>> await reference.setup.call_one()
    >>> ref_logprobs = await reference.score.call_one(batch)       # float32 [N]
    """

    def __init__(self, config: ReferenceModelConfig, model_path: str, pack_length: int, temperature: float):
        self._model_path, self._temperature = Path(model_path), temperature
        self._config = TrainerConfig(
            dtype=config.dtype, rows_per_micro_batch=config.rows_per_micro_batch, pack_length=pack_length
        )

    @endpoint
    async def setup(self, store: WeightStore | None = None) -> None:
        """Load the model. `store` is needed to load a published version."""
        from rlmesh.actors.process_group import join_process_group
        from rlmesh.models.titan import TitanModel

        join_process_group()
        self._titan = TitanModel(self._model_path, self._config, world_size=1)
        self._titan.model.eval()
        self._store = store

    @endpoint
    async def load(self, version: int) -> None:
        """Take the weights of a published version."""
        if self._store is None:
            raise ActorFailure("ReferenceModel: load needs the WeightStore that setup takes")
        self._titan.load_hf(await self._store.fetch(version))

    @endpoint
    async def load_saved(self, folder: str) -> None:
        """Take the weights that `TitanTrainer.save_model` wrote."""
        from rlmesh.models.titan import read_safetensors

        self._titan.load_hf(read_safetensors(Path(folder) / "model"))

    @endpoint
    async def score(self, batch: Batch) -> np.ndarray:
        """Logprobs of the tokens in the loss mask, float32 [N], 0 elsewhere."""
        from rlmesh.models.forward import score_batch

        config = self._config
        return score_batch(self._titan, batch, self._temperature, config.pack_length, config.rows_per_micro_batch)

    @endpoint
    async def close(self) -> None:
        """Leave the process group."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
