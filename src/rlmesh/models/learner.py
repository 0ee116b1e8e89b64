"""Gradients and optimizer steps on a torchtitan model; what TitanTrainer does, without Monarch."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from rlmesh.errors import RLMeshError
from rlmesh.imports import running
from rlmesh.losses import resolve_loss
from rlmesh.losses.inputs import LossInputs
from rlmesh.models.config import TrainerConfig
from rlmesh.models.forward import TokenLogprobs, over_ranks, score_batch, token_logprobs
from rlmesh.models.titan import TitanModel
from rlmesh.rollout.batch import Batch

_PROBE_LENGTH = 65  # tokens: 64 of them have a logprob


@dataclass(frozen=True)
class ForwardBackwardOutput:
    """What a forward and backward pass found, the same on every rank."""

    metrics: dict[str, float]  # means over the batch's loss tokens
    logprobs: np.ndarray  # float32 [N]: of the tokens in the loss mask, under the weights of this pass; 0 elsewhere


class Learner:
    """Accumulates gradients of a loss until `optim_step`.

    Invariant: the gradient is that of the sum over the batch's loss tokens divided by their number in the whole batch. It does
    not depend on packing, on micro-batches or on the number of ranks.

    >>> learner = Learner(Path("model"), TrainerConfig(), temperature=1.0)            # doctest: +SKIP
    >>> output = learner.forward_backward(batch, "cross_entropy", {})
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

    def forward_backward(self, batch: Batch, loss: str, coefficients: dict[str, float]) -> ForwardBackwardOutput:
        """Add the loss's gradient.

        Raises: ValueError when the batch cannot be trained on; RecipeError for an unknown loss.
        """
        function, count = resolve_loss(loss), batch.num_loss_tokens
        batch.check_trainable(self.titan.vocab_size)
        sums: dict[str, float] = {}
        logprobs = torch.zeros(len(batch.tokens))
        for part in token_logprobs(
            self.titan, batch, self.temperature, self.config.pack_length, self.config.rows_per_micro_batch
        ):
            inputs = _loss_inputs(batch, part, self.titan.device)
            with running(loss, "algorithm.loss"):
                loss_M, metrics = function(inputs, **coefficients)
                if loss_M.shape != inputs.logprobs.shape:
                    raise ValueError(f"a loss of shape {list(loss_M.shape)} for {len(inputs.logprobs)} tokens")
                if not loss_M.requires_grad:
                    raise ValueError(
                        "a loss that the logprobs have no part in (detached, or numpy's): nothing can be learned from it"
                    )
                if broken := int((~loss_M.isfinite()).sum()):
                    raise ValueError(f"a loss that is not finite, for {broken} of {len(loss_M)} tokens")
                for name, value_M in metrics.items():
                    sums[name] = sums.get(name, 0.0) + float(value_M.sum())
            (loss_M.sum() / count + part.anchor).backward()
            logprobs[torch.from_numpy(part.index_M)] = part.logprobs_M.detach().cpu()
            for name, value_M in (("loss", loss_M.detach()), ("entropy", part.entropy_M)):
                sums[name] = sums.get(name, 0.0) + float(value_M.sum())
        return ForwardBackwardOutput(self._over_ranks(sums, count), over_ranks(self.titan, logprobs).numpy())

    def optim_step(self, lr: float) -> dict[str, float]:
        """Clip the gradient's norm, step, and start anew. A gradient that is not finite is an error, not a step."""
        from torchtitan.distributed.utils import clip_grad_norm_

        if not (np.isfinite(lr) and lr >= 0):
            raise ValueError(f"the learning rate must be a finite number of at least 0, not {lr}")
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

    def snapshot(self, probe: bool) -> tuple[dict[str, torch.Tensor], dict | None]:
        """This rank's shards of the weights as they are, by their Hugging Face names, and what they make of the probe."""
        return self.titan.hf_shards(), self._probe() if probe else None

    def _probe(self) -> dict:
        """A fixed random sequence and its logprobs at temperature 1; see `rlmesh.weights.snapshot.Manifest`."""
        length = min(_PROBE_LENGTH, self.config.pack_length)
        tokens = np.random.default_rng(0).integers(self.titan.vocab_size, size=length)
        batch = Batch.from_samples([tokens], [np.arange(length) > 0])
        scores = score_batch(self.titan, batch, 1.0, self.config.pack_length, self.config.rows_per_micro_batch)
        return {"tokens": tokens.tolist(), "logprobs": scores[1:].tolist(), "dtype": self.config.dtype}

    def save_model(self, folder: Path) -> None:
        """`folder/model`: an ordinary Hugging Face folder. Every rank must call it."""
        weights = self.titan.hf_state_dict()
        if dist.get_rank() == 0:
            save_hf_folder(weights, self.titan, folder / "model")

    def save(self, folder: Path) -> None:
        """The model, and `folder/optimizer`: the moments. Every rank must call it."""
        self.save_model(folder)
        dcp.save({"optimizer": self.optimizer}, checkpoint_id=str(folder / "optimizer"))

    def load(self, folder: Path) -> None:
        """Take up what `save` wrote, on any number of ranks."""
        from rlmesh.models.safe_load import load_state
        from rlmesh.models.titan import read_safetensors

        self.titan.load_hf(read_safetensors(folder / "model"))
        load_state({"optimizer": self.optimizer}, folder / "optimizer")

    def _over_ranks(self, sums: dict[str, float], count: int) -> dict[str, float]:
        names = sorted(sums)
        totals = over_ranks(self.titan, torch.tensor([sums[name] for name in names], dtype=torch.float64)).tolist()
        return {name: total / count for name, total in zip(names, totals, strict=True)}


def _loss_inputs(batch: Batch, part: TokenLogprobs, device: torch.device) -> LossInputs:
    def pick(array: np.ndarray | None) -> torch.Tensor | None:
        return None if array is None else torch.from_numpy(array[part.index_M]).to(device)

    old = batch.logprobs if batch.old_logprobs is None else batch.old_logprobs
    return LossInputs(part.logprobs_M, pick(old), pick(batch.advantages), pick(batch.ref_logprobs))


def save_hf_folder(weights: dict[str, torch.Tensor], titan: TitanModel, folder: Path) -> None:
    """Write the weights beside the configuration, tokenizer and template of the folder that the model came from."""
    from safetensors.torch import save_file

    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise RLMeshError(f"{folder} exists already, and nothing is overwritten") from None
    for path in titan.model_path.iterdir():
        if (
            path.is_file()
            and path.suffix in (".json", ".txt", ".model", ".jinja")
            and not path.name.endswith(".index.json")
        ):
            shutil.copy(path, folder)
    _say_dtype(folder / "config.json", weights)
    if titan.tied:
        weights = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )


def _say_dtype(config: Path, weights: dict[str, torch.Tensor]) -> None:
    """Loaders follow what config.json says, and would round weights that were kept more exactly than those of the source."""
    content = json.loads(config.read_text())
    content.pop("dtype", None)  # its newer name
    content["torch_dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    config.write_text(json.dumps(content, indent=2) + "\n")
