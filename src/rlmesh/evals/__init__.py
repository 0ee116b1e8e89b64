"""Evaluations that a recipe can name."""

from __future__ import annotations

from typing import Any

from rlmesh.evals.report import AnswerLogprobs, EvalReport, Evaluator, ask
from rlmesh.imports import import_path, running

__all__ = ["EVALUATORS", "AnswerLogprobs", "EvalReport", "Evaluator", "ask", "evaluate", "resolve_evaluator"]

EVALUATORS = {"blackjack": "rlmesh.evals.blackjack.BlackjackEvaluator"}


def resolve_evaluator(name: str, args: dict[str, Any]) -> Evaluator:
    """An evaluator by its name, or one of your own by the import path of its class. Raises: RecipeError naming the key."""
    cls = import_path(EVALUATORS.get(name, name), "eval.name")
    with running(name, "eval.args"):
        return cls(**args)


async def evaluate(evaluator: Evaluator, name: str, answer_logprobs: AnswerLogprobs) -> EvalReport:
    """One evaluation. Raises: RecipeError naming `eval.name` for what goes wrong in the evaluator itself."""
    with running(name, "eval.name"):
        report = await evaluator.evaluate(answer_logprobs)
        if not isinstance(report, EvalReport):
            raise TypeError(f"an evaluation returns an EvalReport, not {report!r}")
        return report
