"""Gradients and optimizer steps on a torchtitan model; what TitanTrainer does, without Monarch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from rlmesh.actors.config import TrainerConfig
from rlmesh.losses import resolve_loss
from rlmesh.losses.inputs import LossInputs
from rlmesh.models.forward import TokenLogprobs, score_batch, token_logprobs
from rlmesh.models.titan import TitanModel
from rlmesh.rollout.batch import Batch


class Learner:
    """Accumulates gradients of a loss until `optim_step`.

    Invariant: the gradient is that of the sum over the batch's loss tokens divided by their number in the whole batch. It does
    not depend on packing, on micro-batches or on the number of ranks.

    >>> learner = Learner(Path("model"), TrainerConfig(), temperature=1.0)            # doctest: +SKIP
    >>> stats = learner.forward_backward(batch, "cross_entropy", {})
    >>> learner.optim_step(lr=1e-3)
    """

    def __init__(self, model_path: Path, config: TrainerConfig, temperature: float):
        self.config, self.temperature = config, temperature
        self.titan = TitanModel(model_path, config, dist.get_world_size())
        self.titan.model.train()
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Forget the optimizer's moments."""
        from torchtitan.components.optimizer import default_adamw

        options = self.config.optimizer
        adamw = default_adamw(lr=0.0, betas=tuple(options.betas), eps=options.eps, weight_decay=options.weight_decay)
        self.optimizer = adamw.build(model_parts=[self.titan.model])

    def forward_backward(self, batch: Batch, loss: str, coefficients: dict[str, float]) -> dict[str, float]:
        """Add the loss's gradient. Returns means over the batch's loss tokens, and maxima where the name says so.

        Raises: ValueError when the batch has no loss tokens; RecipeError for an unknown loss.
        """
        function, count = resolve_loss(loss), batch.num_loss_tokens
        if count == 0:
            raise ValueError("the batch has no tokens to train on")
        sums: dict[str, float] = {}
        maxima: dict[str, float] = {}
        for part in token_logprobs(
            self.titan, batch, self.temperature, self.config.pack_length, self.config.rows_per_micro_batch
        ):
            inputs = _loss_inputs(batch, part, self.titan.device)
            loss_M, metrics = function(inputs, **coefficients)
            (loss_M.sum() / count + part.anchor).backward()
            metrics |= {"loss": loss_M.detach(), "entropy": part.entropy_M}
            if inputs.old_logprobs is not None:
                _add_mismatch(inputs, metrics, maxima)
            for name, value_M in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value_M.sum())
        return self._over_ranks(sums, maxima, count)

    def optim_step(self, lr: float) -> dict[str, float]:
        """Clip the gradient's norm, step, and start anew. A gradient that is not finite is an error, not a step."""
        from torchtitan.distributed.utils import clip_grad_norm_

        norm = clip_grad_norm_(list(self.titan.model.parameters()), self.config.optimizer.max_grad_norm, foreach=True)
        norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if not np.isfinite(norm):
            self.optimizer.zero_grad()
            raise FloatingPointError(f"the gradient's norm is {norm}")
        for optimizer in self.optimizer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"optim/lr": lr, "optim/grad_norm": norm}

    def score(self, batch: Batch) -> np.ndarray:
        """Logprobs of the tokens in the loss mask under the weights as they are, float32 [N], 0 elsewhere."""
        return score_batch(
            self.titan, batch, self.temperature, self.config.pack_length, self.config.rows_per_micro_batch
        )

    def save(self, folder: Path) -> None:
        """`folder/model`: an ordinary Hugging Face folder; `folder/optimizer`: the moments. Every rank must call it."""
        weights = self.titan.hf_state_dict()
        if dist.get_rank() == 0:
            save_hf_folder(weights, self.titan, folder / "model")
        dcp.save({"optimizer": self.optimizer}, checkpoint_id=str(folder / "optimizer"))

    def load(self, folder: Path) -> None:
        """Take up what `save` wrote, on any number of ranks."""
        from rlmesh.models.titan import read_safetensors

        self.titan.load_hf(read_safetensors(folder / "model"))
        dcp.load({"optimizer": self.optimizer}, checkpoint_id=str(folder / "optimizer"))

    def _over_ranks(self, sums: dict[str, float], maxima: dict[str, float], count: int) -> dict[str, float]:
        if dist.get_world_size() > 1 and (mesh := self.titan.dims.get_optional_mesh("batch")):
            for values, operation in ((sums, dist.ReduceOp.SUM), (maxima, dist.ReduceOp.MAX)):
                names = sorted(values)
                tensor = torch.tensor([values[name] for name in names], device=self.titan.device)
                dist.all_reduce(tensor, operation, group=mesh.get_group())
                values.update(zip(names, tensor.tolist(), strict=True))
        return {name: value / count for name, value in sums.items()} | maxima


def _loss_inputs(batch: Batch, part: TokenLogprobs, device: torch.device) -> LossInputs:
    def pick(array: np.ndarray | None) -> torch.Tensor | None:
        return None if array is None else torch.from_numpy(array[part.index_M]).to(device)

    return LossInputs(part.logprobs_M, pick(batch.logprobs), pick(batch.advantages), pick(batch.ref_logprobs))


def _add_mismatch(inputs: LossInputs, metrics: dict[str, Any], maxima: dict[str, float]) -> None:
    """How far the weights that are trained are from those that sampled, before any clipping."""
    log_ratio = (inputs.logprobs - inputs.old_logprobs).detach()
    kl = log_ratio.exp() - log_ratio - 1
    metrics["mismatch_kl/mean"] = kl
    for name, value in (("mismatch_kl/max", kl), ("ratio/max", log_ratio.exp())):
        maxima[name] = max(maxima.get(name, 0.0), float(value.max()) if len(value) else 0.0)


def save_hf_folder(weights: dict[str, torch.Tensor], titan: TitanModel, folder: Path) -> None:
    """Write the weights beside the configuration, tokenizer and template of the folder that the model came from."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    for path in titan.model_path.iterdir():
        if (
            path.is_file()
            and path.suffix in (".json", ".txt", ".model", ".jinja")
            and not path.name.endswith(".index.json")
        ):
            shutil.copy(path, folder)
    if titan.tied:
        weights = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
