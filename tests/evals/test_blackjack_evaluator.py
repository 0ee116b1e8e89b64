"""The exact evaluator: policies whose value is known, what is reported, and what it draws."""

import io
import json
import time

import numpy as np
import pytest
from blackjack_env.solver import VIEWS, hit_below, solver
from rich.console import Console

from rlmesh.errors import RecipeError
from rlmesh.evals import resolve_evaluator
from rlmesh.evals.blackjack import BlackjackEvaluator


def policy(p_hit_V, p_stand_V=None):
    """The callable that an evaluator asks, for given chances of each view."""
    p_stand_V = 1 - p_hit_V if p_stand_V is None else p_stand_V
    chances = {view.text: (hit, stand) for view, hit, stand in zip(VIEWS, p_hit_V, p_stand_V, strict=True)}

    async def answer_logprobs(observations, answers):
        with np.errstate(divide="ignore"):
            return np.log([[chances[o][["hit", "stand"].index(a)] for a in answers] for o in observations])

    return answer_logprobs


@pytest.mark.parametrize("rules", ["gym_sab", "single_deck"])
async def test_the_optimal_policy_gets_the_optimal_value(rules):
    best = solver(rules)
    report = await BlackjackEvaluator(rules).evaluate(policy(best.optimal_V))
    assert report.metrics == pytest.approx(
        {
            "eval/blackjack/greedy_value": best.optimal_value,
            "eval/blackjack/sampled_value": best.optimal_value,
            "eval/blackjack/invalid": 0.0,
            "eval/blackjack/optimal_actions": 1.0,
        }
    )


async def test_greedy_and_sampled_differ_as_they_should():
    """60 % towards hit below 17: greedily that policy; sampled, a mixture that is drawn anew at each turn."""
    lean = 0.2 + 0.6 * hit_below(17)
    report = await BlackjackEvaluator().evaluate(policy(lean))
    assert round(report.metrics["eval/blackjack/greedy_value"], 4) == -0.0759
    assert report.metrics["eval/blackjack/sampled_value"] == pytest.approx(solver("gym_sab").value(lean))
    assert report.metrics["eval/blackjack/sampled_value"] < -0.0759


async def test_invalid_answers_cost_their_penalty_in_the_sampled_value_only():
    stands = 1 - hit_below(17)
    report = await BlackjackEvaluator().evaluate(policy(0.75 * hit_below(17), 0.75 * stands))
    assert report.metrics["eval/blackjack/invalid"] == pytest.approx(0.25)
    assert round(report.metrics["eval/blackjack/greedy_value"], 4) == -0.0759
    never_valid = await BlackjackEvaluator().evaluate(policy(np.zeros(280), np.zeros(280)))
    assert never_valid.metrics["eval/blackjack/sampled_value"] == pytest.approx(-1.0)


async def test_report_shows_ladder_and_charts_and_can_be_saved(tmp_path):
    evaluator = BlackjackEvaluator()
    report = await evaluator.evaluate(policy(hit_below(17)))
    console = Console(record=True, width=120, file=io.StringIO())
    for table in report.tables:
        console.print(table)
    text = console.export_text()
    ladder = [name for name in ("random", "always stand", "hit below 17", "optimal") if name in text]
    assert ladder == ["random", "always stand", "hit below 17", "optimal"]
    assert text.index("random") < text.index("always stand") < text.index("this policy, greedy") < text.index("optimal")
    assert "hard total" in text and "soft total" in text

    states = json.loads(json.dumps(report.data))["states"]
    assert len(states) == 280 and states[0] == {
        "total": 4, "soft": False, "dealer": 1, "p_hit": 1.0, "p_stand": 0.0, "optimal": "hit",
    }  # fmt: skip
    evaluator.plot(report, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


async def test_chart_marks_what_differs_from_the_optimum():
    report = await BlackjackEvaluator().evaluate(policy(hit_below(17)))
    red = sum(cell.style == "bold red" for table in report.tables[1:] for column in table.columns for cell in column._cells
              if not isinstance(cell, str))  # fmt: skip
    decided = [i for i, view in enumerate(VIEWS) if view.total < 21]
    assert red == (hit_below(17) != solver("gym_sab").optimal_V)[decided].sum() > 0


async def test_evaluation_is_fast_enough_to_run_while_training():
    evaluator, asked = BlackjackEvaluator(), policy(np.full(280, 0.5))
    await evaluator.evaluate(asked)
    started = time.perf_counter()
    await evaluator.evaluate(asked)
    assert time.perf_counter() - started < 0.5


def test_resolve_by_name_and_by_import_path():
    assert isinstance(resolve_evaluator("blackjack", {"rules": "no_bonus"}), BlackjackEvaluator)
    assert isinstance(resolve_evaluator("rlmesh.evals.blackjack.BlackjackEvaluator", {}), BlackjackEvaluator)
    with pytest.raises(RecipeError, match=r"eval\.name"):
        resolve_evaluator("chess", {})
