"""What is asked of the PolicyServer, checked before vLLM sees it: its engine would die of some of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlmesh.errors import ActorFailure
from rlmesh.rollout.types import GenerateRequest


@dataclass(frozen=True)
class Limits:
    """What the served model takes.

    >>> Limits(vocab_size=8, max_length=4).check_request(GenerateRequest([1, 2], n=1, seed=0, max_tokens=2))
    """

    vocab_size: int
    max_length: int

    def check_request(self, request: GenerateRequest) -> None:
        """Raises: ActorFailure that says what is wrong with the request."""
        self._check_tokens("a prompt", request.prompt, self.max_length - 1)
        for name, least in (("n", 1), ("max_tokens", 1), ("seed", 0)):
            if getattr(request, name) < least:
                raise ActorFailure(
                    f"PolicyServer: a request's {name} must be at least {least}, not {getattr(request, name)}"
                )

    def check_scoring(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> None:
        """Raises: ActorFailure that says what is wrong with the sequences."""
        if len(prompts) != len(completions):
            raise ActorFailure(f"PolicyServer: {len(prompts)} prompts cannot have {len(completions)} completions")
        for prompt, completion in zip(prompts, completions, strict=True):
            self._check_tokens("a prompt", prompt, self.max_length - 1)
            self._check_tokens("a completion", completion, self.max_length - len(prompt))

    def _check_tokens(self, what: str, tokens: Sequence[int], longest: int) -> None:
        if not 1 <= len(tokens) <= longest:
            raise ActorFailure(f"PolicyServer: {what} has {len(tokens)} tokens, and 1 to {longest} can be served")
        if not 0 <= min(tokens) <= max(tokens) < self.vocab_size:
            wrong = next(token for token in tokens if not 0 <= token < self.vocab_size)
            raise ActorFailure(
                f"PolicyServer: {what} has token {wrong}, which is none of the model's {self.vocab_size}"
            )
