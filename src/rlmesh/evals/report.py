"""What an evaluation says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

AnswerLogprobs = Callable[[list[str], list[str]], Awaitable[np.ndarray]]
"""(P observations, A answers) -> float [P, A]: the logprob that the policy's whole answer, with its end, is that text."""


@dataclass
class EvalReport:
    """One evaluation of one policy version."""

    metrics: dict[str, float]  # by their final names, `eval/<name>/...`
    data: dict[str, Any]  # everything, for a file
    tables: list[Any] = field(default_factory=list)  # what rich shows at the end of a run
    references: dict[str, float] = field(default_factory=dict)  # values to compare with, drawn into the learning curve


def ask(render: Callable[..., Awaitable], score: Callable[..., Awaitable]) -> AnswerLogprobs:
    """What an evaluator asks with, from a RolloutWorker's `render` and a PolicyServer's `score`.

    >>> report = await evaluator.evaluate(ask(mesh.rollout.render, mesh.policy.score))       # doctest: +SKIP
    """

    async def answer_logprobs(observations: list[str], answers: list[str]) -> np.ndarray:
        pairs = [(observation, answer) for observation in observations for answer in answers]
        prompts, completions = await render([observation for observation, _ in pairs], [answer for _, answer in pairs])
        logprobs = await score(prompts, completions)
        return np.array([row.sum() for row in logprobs]).reshape(len(observations), len(answers))

    return answer_logprobs


class Evaluator(Protocol):
    """Evaluates policies of one environment."""

    async def evaluate(self, answer_logprobs: AnswerLogprobs) -> EvalReport: ...
    def plot(self, report: EvalReport, path: Path) -> None: ...
