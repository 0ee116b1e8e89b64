"""The exact value of a policy in BlackJack: read for every state, computed by dynamic programming, no games played."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from blackjack_env.solver import VIEWS, View, hit_below, solver
from rich.table import Table
from rich.text import Text

from rlmesh.evals.report import AnswerLogprobs, EvalReport

_ANSWERS = ["hit", "stand"]
_DEALERS = [2, 3, 4, 5, 6, 7, 8, 9, 10, 1]  # the ace last, as players write it
_CHARTS = (("hard", False, range(4, 21)), ("soft", True, range(12, 21)))  # 21 has nothing to decide


class BlackjackEvaluator:
    """Values of the policy that samples and of the one that takes the likelier answer, against the best and the simplest.

    An answer that is neither hit nor stand costs what the environment makes it cost. Other spellings that the environment
    would take (`Hit.`) are counted among those, so that the sampled value is exact for a policy that has none and a lower
    bound otherwise. The policy must be a function of what it sees in one turn (`rollout.history: none`).

    >>> report = await BlackjackEvaluator("gym_sab").evaluate(answer_logprobs)      # doctest: +SKIP
    >>> report.metrics["eval/blackjack/greedy_value"]
    -0.0468
    """

    def __init__(self, rules: str = "gym_sab"):
        self.rules = rules
        self._solver = solver(rules)
        self._texts = [view.text for view in VIEWS]

    async def evaluate(self, answer_logprobs: AnswerLogprobs) -> EvalReport:
        """Ask for every state's answer and compute the values."""
        p_VA = np.exp(np.asarray(await answer_logprobs(self._texts, _ANSWERS), dtype=np.float64))
        hit_V, stand_V = p_VA[:, 0], p_VA[:, 1]
        greedy_V = (hit_V > stand_V).astype(np.float64)
        metrics = {
            "eval/blackjack/greedy_value": self._solver.value(greedy_V),
            "eval/blackjack/sampled_value": self._solver.value(hit_V, stand_V),
            "eval/blackjack/invalid": float(1 - (hit_V + stand_V).mean()),
            "eval/blackjack/optimal_actions": float((greedy_V == self._solver.optimal_V).mean()),
        }
        references = {
            "random": self._solver.value(np.full(len(VIEWS), 0.5)),
            "always stand": self._solver.value(hit_below(4)),
            "hit below 17": self._solver.value(hit_below(17)),
            "optimal": self._solver.optimal_value,
        }
        states = [
            {
                "total": view.total,
                "soft": view.soft,
                "dealer": view.dealer,
                "p_hit": hit,
                "p_stand": stand,
                "optimal": _ANSWERS[int(not best)],
            }
            for view, hit, stand, best in zip(
                VIEWS, hit_V.tolist(), stand_V.tolist(), self._solver.optimal_V.tolist(), strict=True
            )
        ]
        data = {"rules": self.rules, "metrics": metrics, "references": references, "states": states}
        return EvalReport(metrics, data, [_ladder(metrics, references), *self._charts(hit_V, stand_V)], references)

    def _charts(self, hit_V: np.ndarray, stand_V: np.ndarray) -> list[Table]:
        """Hit and stand by total and dealer's card; where it differs from the best policy, with a star."""
        index = {view: i for i, view in enumerate(VIEWS)}
        tables = []
        for name, soft, totals in _CHARTS:
            table = Table(
                f"{name} total",
                *["A" if d == 1 else str(d) for d in _DEALERS],
                title="by dealer's card: H hit, S stand, * not the best",
            )
            for total in reversed(totals):
                cells = []
                for dealer in _DEALERS:
                    i = index[View(total, soft, dealer)]
                    hits = hit_V[i] > stand_V[i]
                    best = hits == self._solver.optimal_V[i]
                    cells.append(Text("HS"[not hits] + ("" if best else "*"), style="" if best else "bold red"))
                table.add_row(str(total), *cells)
            tables.append(table)
        return tables

    def plot(self, report: EvalReport, path: Path) -> None:
        """P(hit) by total and dealer's card as a picture; a cross where the likelier answer is not the best one."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        states = {(s["total"], s["soft"], s["dealer"]): s for s in report.data["states"]}
        figure, axes = plt.subplots(1, 2, figsize=(10, 5.2), width_ratios=(1, 1), layout="constrained")
        for axis, (name, soft, totals) in zip(axes, _CHARTS, strict=True):
            grid = [[states[total, soft, dealer] for dealer in _DEALERS] for total in totals]
            p_hit = np.array([[s["p_hit"] for s in row] for row in grid])
            image = axis.imshow(p_hit, cmap="RdYlGn_r", vmin=0, vmax=1, aspect="auto", origin="lower")
            for y, row in enumerate(grid):
                for x, state in enumerate(row):
                    likelier = "hit" if state["p_hit"] > state["p_stand"] else "stand"
                    axis.text(x, y, likelier[0].upper(), ha="center", va="center", fontsize=8)
                    if likelier != state["optimal"]:
                        axis.plot(x, y, marker="x", color="black", markersize=14, markeredgewidth=0.8)
            axis.set_xticks(range(10), ["A" if d == 1 else str(d) for d in _DEALERS])
            axis.set_yticks(range(len(totals)), totals)
            axis.set_title(f"{name} totals")
            axis.set_xlabel("dealer shows")
        axes[0].set_ylabel("player's total")
        value = report.metrics["eval/blackjack/greedy_value"]
        figure.suptitle(
            f"the policy's P(hit); greedy value {value:.4f}, optimal {report.references['optimal']:.4f}; crosses differ from optimal"
        )
        figure.colorbar(image, ax=axes, label="P(hit)")
        figure.savefig(path, dpi=130)
        plt.close(figure)


def _ladder(metrics: dict[str, float], references: dict[str, float]) -> Table:
    """The policy among the policies that it is compared with, the worst first."""
    rows = dict(references) | {
        "this policy, greedy": metrics["eval/blackjack/greedy_value"],
        "this policy, sampled": metrics["eval/blackjack/sampled_value"],
    }
    table = Table("policy", "exact value of a game", title="BlackJack")
    for name, value in sorted(rows.items(), key=lambda row: row[1]):
        table.add_row(name, f"{value:.4f}", style="bold" if name.startswith("this") else "")
    return table
