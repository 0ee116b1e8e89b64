"""The trainer's input: samples of different lengths, laid end to end.

Shapes: N tokens in all, S samples. Sample s is the slice `offsets[s]:offsets[s + 1]` of every per-token array, and
every per-token array is aligned with `tokens`: `logprobs[i]` is the logprob of `tokens[i]` given what stands before it
in the same sample. The first token of a sample has nothing before it and is never trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np


@dataclass(slots=True)
class Batch:
    """Samples laid end to end; see the module for shapes.

    >>> batch = Batch.from_samples([np.array([5, 6, 7])], [np.array([False, True, True])])
    >>> batch.num_samples, batch.num_loss_tokens
    (1, 2)
    """

    tokens: np.ndarray  # int64 [N]
    offsets: np.ndarray  # int64 [S + 1]
    loss_mask: np.ndarray  # bool [N]: sampled by the policy (or, for supervised steps, to be learned)
    logprobs: np.ndarray | None = None  # float32 [N]: as sampled, 0 where not sampled
    advantages: np.ndarray | None = None  # float32 [N]
    ref_logprobs: np.ndarray | None = None  # float32 [N]
    old_logprobs: np.ndarray | None = None  # float32 [N]: what a loss takes its ratio against (None: `logprobs`)
    versions: np.ndarray | None = None  # int64 [N]: policy version that sampled the token, -1 where not sampled

    def __post_init__(self):
        n = len(self.tokens)
        if self.offsets[0] != 0 or self.offsets[-1] != n or (np.diff(self.offsets) < 1).any():
            raise ValueError(f"offsets must rise from 0 to {n} without empty samples, got {self.offsets}")
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name != "offsets" and value is not None and value.shape != (n,):
                raise ValueError(f"{f.name} has shape {value.shape}, but the batch has {n} tokens")
        if self.loss_mask[self.offsets[:-1]].any():
            raise ValueError("the first token of a sample has no prediction and cannot be trained on")

    def check_trainable(self, vocab_size: int) -> None:
        """Raises: ValueError for tokens that the model does not have, for a batch without loss tokens, for numbers that are not finite."""
        if not self.loss_mask.any():
            raise ValueError("the batch has no tokens to train on")
        if self.tokens.min() < 0 or self.tokens.max() >= vocab_size:
            raise ValueError(
                f"tokens from {self.tokens.min()} to {self.tokens.max()} are not all of the model's {vocab_size}"
            )
        for name in ("logprobs", "old_logprobs", "advantages", "ref_logprobs"):
            values = getattr(self, name)
            if values is not None and (wrong := ~np.isfinite(values) & self.loss_mask).any():
                place = int(np.argmax(wrong))
                raise ValueError(
                    f"{name} of token {place} is {values[place]}, and {int(wrong.sum())} are not finite in all"
                )

    @property
    def num_samples(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_loss_tokens(self) -> int:
        return int(self.loss_mask.sum())

    @classmethod
    def from_samples(cls, tokens, loss_mask, logprobs=None, advantages=None, versions=None) -> Batch:
        """Lay lists of per-sample arrays end to end."""

        def flat(parts, dtype):
            return None if parts is None else np.concatenate([np.asarray(p, dtype=dtype) for p in parts])

        offsets = np.concatenate([[0], np.cumsum([len(t) for t in tokens])]).astype(np.int64)
        return cls(
            flat(tokens, np.int64),
            offsets,
            flat(loss_mask, np.bool_),
            flat(logprobs, np.float32),
            flat(advantages, np.float32),
            versions=flat(versions, np.int64),
        )

    def with_ref_logprobs(self, ref_logprobs: np.ndarray) -> Batch:
        return replace(self, ref_logprobs=ref_logprobs.astype(np.float32))

    def select(self, samples: np.ndarray) -> Batch:
        """The batch of the given samples (indices, in the given order)."""
        index = np.concatenate([np.arange(self.offsets[s], self.offsets[s + 1]) for s in samples])
        offsets = np.concatenate([[0], np.cumsum(np.diff(self.offsets)[samples])]).astype(np.int64)
        cut = {
            f.name: None if (v := getattr(self, f.name)) is None else v[index]
            for f in fields(self)
            if f.name != "offsets"
        }
        return Batch(offsets=offsets, **cut)
