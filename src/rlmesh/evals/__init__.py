"""Evaluations that a recipe can name."""

from __future__ import annotations

from typing import Any

from rlmesh.evals.report import AnswerLogprobs, EvalReport, Evaluator, ask
from rlmesh.imports import import_path

__all__ = ["EVALUATORS", "AnswerLogprobs", "EvalReport", "Evaluator", "ask", "resolve_evaluator"]

EVALUATORS = {"blackjack": "rlmesh.evals.blackjack.BlackjackEvaluator"}


def resolve_evaluator(name: str, args: dict[str, Any]) -> Evaluator:
    """An evaluator by its name, or one of your own by the import path of its class."""
    return import_path(EVALUATORS.get(name, name), "eval.name")(**args)
