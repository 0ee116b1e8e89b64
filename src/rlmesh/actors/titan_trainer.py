"""TitanTrainer: trains the policy with torchtitan's parts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from monarch.actor import Actor, endpoint

from rlmesh.actors.config import TrainerConfig
from rlmesh.errors import ActorFailure
from rlmesh.rollout.batch import Batch

if TYPE_CHECKING:
    from rlmesh.weights import WeightStore


class TitanTrainer(Actor):
    """One rank of the trainer; a proc mesh of several is one trainer (FSDP2, tensor parallelism, as `config.parallelism` says).

    Every rank gets the whole batch and takes its share. Gradients accumulate until `optim_step`; the gradient is the same for
    any micro-batching and any number of ranks. Both sides of a ratio use the sampling distribution: logprobs are those of
    logits / temperature.

    >>> trainer = proc_mesh.spawn("trainer", TitanTrainer, TrainerConfig(), "model", 0, 1.0)         # doctest: +SKIP
    >>> await trainer.setup.call()
    >>> await trainer.forward_backward.call_one(batch, "cross_entropy", {})
    {'loss': 4.9, 'entropy': 4.9}
    >>> await trainer.optim_step.call_one(lr=1e-3)
    {'optim/lr': 0.001, 'optim/grad_norm': 0.8}

    Endpoints run one after the other, in the order in which they were called: that is what keeps weights and gradients apart.
    """

    def __init__(self, config: TrainerConfig, model_path: str, seed: int, temperature: float):
        self._config, self._model_path, self._seed, self._temperature = config, Path(model_path), seed, temperature
        self._busy: list[tuple[float, float]] = []

    @endpoint
    async def setup(self, store: WeightStore | None = None) -> None:
        """Join the other ranks and load the model. `store` is needed to publish."""
        import torch

        from rlmesh.actors.process_group import join_process_group
        from rlmesh.models.learner import Learner

        torch.manual_seed(self._seed)
        join_process_group()
        self._learner = Learner(self._model_path, self._config, self._temperature)
        self._store = store

    @endpoint
    async def forward_backward(self, batch: Batch, loss: str, coefficients: dict[str, float]) -> dict[str, float]:
        """Add the gradient of the loss, a name of `rlmesh.losses` or an import path; returns the batch's mean metrics."""
        return self._timed(self._learner.forward_backward, batch, loss, coefficients)

    @endpoint
    async def optim_step(self, lr: float) -> dict[str, float]:
        """One optimizer step with the gradients since the last one."""
        return self._timed(self._learner.optim_step, lr)

    @endpoint
    async def reset_optimizer(self) -> None:
        """Forget the optimizer's moments."""
        self._learner.reset_optimizer()

    @endpoint
    async def score(self, batch: Batch) -> np.ndarray:
        """Logprobs of the tokens in the loss mask under the weights as they are, float32 [N], 0 elsewhere."""
        return self._timed(self._learner.score, batch)

    @endpoint
    async def publish(self, version: int) -> None:
        """Publish the weights as they are now, as an immutable snapshot."""
        if self._store is None:
            raise ActorFailure("TitanTrainer: publish needs the WeightStore that setup takes")
        import torch.distributed as dist

        weights = self._learner.titan.hf_state_dict()  # every rank takes part in gathering them
        if dist.get_rank() == 0:
            await self._store.publish(version, weights)

    @endpoint
    async def save(self, folder: str) -> None:
        """Write `folder/model` (an ordinary Hugging Face folder) and `folder/optimizer`."""
        self._learner.save(Path(folder))

    @endpoint
    async def load(self, folder: str) -> None:
        """Go on from what `save` wrote, also with another number of ranks."""
        self._learner.load(Path(folder))

    @endpoint
    async def busy(self) -> list[tuple[float, float]]:
        """Since the last call: when this rank was computing, as intervals of this host's monotonic clock."""
        intervals, self._busy = self._busy, []
        return intervals

    @endpoint
    async def close(self) -> None:
        """Leave the process group."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()

    def _timed(self, function, *args):
        began = time.monotonic()
        try:
            return function(*args)
        finally:
            self._busy.append((began, time.monotonic()))
