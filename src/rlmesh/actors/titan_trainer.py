"""TitanTrainer: trains the policy with torchtitan's parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from monarch.actor import concurrent_endpoint, endpoint

from rlmesh.actors.needs_setup import NeedsSetup
from rlmesh.errors import ActorFailure
from rlmesh.models.config import TrainerConfig
from rlmesh.rollout.batch import Batch

if TYPE_CHECKING:
    from rlmesh.models.learner import ForwardBackwardOutput
    from rlmesh.weights import WeightStore

Result = TypeVar("Result")


class TitanTrainer(NeedsSetup):
    """One rank of the trainer; a proc mesh of several is one trainer (FSDP2, tensor parallelism, as `config.parallelism` says).

    Every rank gets the whole batch and takes its share. Gradients accumulate until `optim_step`; the gradient is the same for
    any micro-batching and any number of ranks. Both sides of a ratio use the sampling distribution: logprobs are those of
    logits / temperature.

    >>> trainer = proc_mesh.spawn("trainer", TitanTrainer, TrainerConfig(), "model", 0, 1.0)         # doctest: +SKIP
    >>> await trainer.setup.call()
    >>> await trainer.forward_backward.call_one(batch, "cross_entropy", {})
    ForwardBackwardOutput(metrics={'loss': 4.9, 'entropy': 4.9}, logprobs=array([...]))
    >>> await trainer.optim_step.call_one(lr=1e-3)
    {'optim/lr': 0.001, 'optim/grad_norm': 0.8}

    What computes runs in one thread, in the order in which it was called: that is what keeps weights and gradients apart.
    Publishing copies the weights beside the forward and backward passes that follow; `optim_step` waits for the copy, so that
    no reader sees a tensor that an optimizer is changing.
    """

    def __init__(self, config: TrainerConfig, model_path: str, seed: int, temperature: float):
        self._config, self._model_path, self._seed, self._temperature = config, Path(model_path), seed, temperature
        self._busy: list[tuple[float, float]] = []
        self._store: WeightStore | None = None
        self._thread = ThreadPoolExecutor(1, "trainer")
        self._steady = asyncio.Lock()  # held while the weights are copied, and while they change

    @endpoint
    async def setup(self, store: WeightStore | None = None) -> None:
        """Join the other ranks and load the model. `store` is needed to publish."""
        await self._compute(self._load_model)
        self._store = store

    def _load_model(self) -> None:
        import torch

        from rlmesh.actors.process_group import join_process_group
        from rlmesh.models.learner import Learner

        torch.manual_seed(self._seed)
        if self._config.batch_invariant:
            from torchtitan.distributed.utils import set_batch_invariance

            set_batch_invariance(True)  # before the process group is there
        join_process_group()
        self._learner = Learner(self._model_path, self._config, self._temperature)

    @endpoint
    async def forward_backward(self, batch: Batch, loss: str, coefficients: dict[str, float]) -> ForwardBackwardOutput:
        """Add the gradient of the loss, a name of `rlmesh.losses` or an import path; returns mean metrics and logprobs."""
        return await self._compute(self._learner.forward_backward, batch, loss, coefficients)

    @endpoint
    async def optim_step(self, lr: float) -> dict[str, float]:
        """One optimizer step with the gradients since the last one."""
        async with self._steady:
            return await self._compute(self._learner.optim_step, lr)

    @endpoint
    async def reset_optimizer(self) -> None:
        """Forget the optimizer's moments."""
        await self._compute(self._learner.reset_optimizer)

    @endpoint
    async def score(self, batch: Batch) -> np.ndarray:
        """Logprobs of the tokens in the loss mask under the weights as they are, float32 [N], 0 elsewhere."""
        return await self._compute(self._learner.score, batch)

    @concurrent_endpoint
    async def publish(self, version: int, probe: bool = True) -> None:
        """Publish the weights as they are now, as an immutable snapshot; forward and backward passes go on meanwhile.

        With `probe` the manifest has this trainer's logprobs of a fixed sequence, for readers to compare theirs with.
        """
        if self._store is None:
            raise ActorFailure("TitanTrainer: publish needs the WeightStore that setup takes")
        async with self._steady:
            weights, scores = await self._compute(self._learner.snapshot, probe)
            await self._store.publish(version, weights, scores)

    @endpoint
    async def save_model(self, folder: str) -> None:
        """Write `folder/model`, an ordinary Hugging Face folder."""
        await self._compute(self._learner.save_model, Path(folder))

    @endpoint
    async def save(self, folder: str) -> None:
        """Write `folder/model` (an ordinary Hugging Face folder) and `folder/optimizer`."""
        await self._compute(self._learner.save, Path(folder))

    @endpoint
    async def load(self, folder: str) -> None:
        """Go on from what `save` wrote, also with another number of ranks."""
        async with self._steady:
            await self._compute(self._learner.load, Path(folder))

    @endpoint
    async def busy(self) -> list[tuple[float, float]]:
        """Since the last call: when this rank was computing, as intervals of this host's monotonic clock."""
        intervals, self._busy = self._busy, []
        return intervals

    @endpoint
    async def close(self) -> None:
        """Let go of what was published, and leave the process group."""
        import torch.distributed as dist

        if self._store:
            await self._store.release()
        if dist.is_initialized():
            await self._compute(dist.destroy_process_group)

    async def _compute(self, function: Callable[..., Result], *args) -> Result:
        """Run in this actor's one computing thread."""

        def timed() -> Result:
            began = time.monotonic()
            try:
                return function(*args)
            finally:
                self._busy.append((began, time.monotonic()))

        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)
