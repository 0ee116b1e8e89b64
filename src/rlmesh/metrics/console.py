"""What a person sees while a run goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.live import Live
from rich.table import Table


def step_line(step: int, steps: int, metrics: dict[str, float], groups: int, left_s: float) -> str:
    """A step in one line; numbers that are not finite are named at its end.

    `step 12 | 0.9 s | reward -0.21 | groups 32/32 | age 0.4 (max 1) | errors 0 | truncated 0 % | 13/150, 2 min left`
    """
    errors = sum(value for name, value in metrics.items() if name.startswith("errors/"))
    parts = [
        f"step {step}",
        f"{metrics['time/step']:.1f} s",
        f"reward {metrics.get('reward/mean', float('nan')):+.2f}",
        f"groups {metrics.get('groups', 0):.0f}/{groups}",
        f"age {metrics.get('off_policy/mean', 0):.1f} (max {metrics.get('off_policy/max', 0):.0f})",
        f"errors {errors:.0f}",
        f"truncated {100 * metrics.get('episodes/truncated', 0):.0f} %",
        f"{step + 1}/{steps}, {duration(left_s)} left",
    ]
    if broken := [name for name, value in metrics.items() if not math.isfinite(value)]:
        parts.append(f"not finite: {', '.join(broken)}")
    return " | ".join(parts)


def duration(seconds: float) -> str:
    """
    >>> duration(8.2), duration(130), duration(7300)
    ('8 s', '2 min', '2 h 2 min')
    """
    minutes = round(seconds / 60)
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


class Console:
    """The run's console: what is waited for at the start, and a line for each thing that happened.

    >>> console = Console()                                      # doctest: +SKIP
    >>> with console.waiting("policy server (vLLM)"):
    ...     start()
    """

    def __init__(self, enabled: bool = True):
        self._rich = RichConsole(quiet=not enabled, highlight=False, markup=False, soft_wrap=True)
        self._pending: list[tuple[str, float]] = []  # what is waited for, since when
        self._live: Live | None = None

    def print(self, *what) -> None:
        """A line of text, or anything that rich can show."""
        self._rich.print(*what)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show that `what` is being waited for, and then how long it took; several may overlap."""
        pending = (what, time.monotonic())
        self._pending.append(pending)
        self._show_pending()
        if not self._rich.is_terminal:
            self.print(f"  waiting for {what}")
        try:
            yield
            self.print(f"  {what}: ready after {time.monotonic() - pending[1]:.1f} s")
        finally:
            self._pending.remove(pending)
            self._show_pending()

    def _show_pending(self) -> None:
        """On a terminal the pending things stand below the log with a clock; elsewhere a line each is all."""
        if self._live is None and self._pending and self._rich.is_terminal:
            self._live = Live(
                get_renderable=self._pending_table, console=self._rich, transient=True, refresh_per_second=4
            )
            self._live.start()
        elif self._live and not self._pending:
            self._live.stop()
            self._live = None

    def _pending_table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for what, began in self._pending:
            table.add_row("  waiting for", what, f"{time.monotonic() - began:.0f} s")
        return table
