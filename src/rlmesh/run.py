"""`python -m rlmesh.run RECIPE [key=value ...]`: recipe -> mesh -> loop."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from rlmesh.errors import ActorDied, ActorFailure, RLMeshError
from rlmesh.evals import EvalReport, ask, evaluate, resolve_evaluator
from rlmesh.imports import running
from rlmesh.metrics import Metrics
from rlmesh.metrics.backends import make_backends
from rlmesh.metrics.busy import intersection, length, merged
from rlmesh.metrics.console import Console, duration, step_line
from rlmesh.metrics.plots import plot_learning_curve
from rlmesh.metrics.warnings import Watch
from rlmesh.recipe import Recipe, check_recipe
from rlmesh.rollout.types import Group
from rlmesh.run_directory import RunDirectory
from rlmesh.stopping import interruptible, until_stopped
from rlmesh.tasks import together
from rlmesh.versions import check_versions
from rlmesh.watchdog import Watchdog

if TYPE_CHECKING:
    from rlmesh.mesh.actor_mesh import ActorMesh


class Run:
    """A run's bookkeeping around its loop: step metrics, evaluation, checkpoints, console and the run directory.

    >>> async for step in run.steps(served.reach):                      # doctest: +SKIP
    ...     with run.timed("train", step, "the trainer"):
    ...         run.record(step, (await mesh.trainer.forward_backward(batch, "grpo", coefficients)).metrics)
    ...     await run.finish(step, groups)
    """

    def __init__(
        self,
        recipe: Recipe,
        directory: RunDirectory,
        console: Console,
        resumed: tuple[int, Path] | None = None,
        restarts: int = 0,
    ):
        self.recipe, self.directory, self.console = recipe, directory, console
        self.first_step, self.checkpoint = resumed or (0, None)  # where to go on from
        self.mesh = None  # the ActorMesh, once it runs
        self.report: EvalReport | None = None  # the latest evaluation
        self.trained = self.saved = False  # a step was finished, a checkpoint was written
        self._restarts = restarts
        self._stepping = False
        self._step = self.first_step  # what is being trained
        self._end: Callable[[], None] | None = None  # to be called at the end of this step
        self.since = time.monotonic()  # of the whole run, restarts included
        self.began = self._step_began = self._training_began = time.monotonic()
        self._metrics: defaultdict[int, Metrics] = defaultdict(Metrics)
        self._backends = make_backends(recipe.metrics, directory.path, recipe.run.name, asdict(recipe), self.warn)
        self._watch = Watch(recipe.algorithm.mismatch.warn_above)
        self._watchdog = Watchdog(recipe.run.warn_after_s, self.warn, lambda: self.mesh.waits())
        self._evaluator = resolve_evaluator(recipe.eval.name, recipe.eval.args) if recipe.eval.name else None

    def record(self, step: int, metrics: Metrics | Mapping[str, float]) -> None:
        """Add to a step's metrics, from anywhere in the loop and in any order."""
        self._metrics[step].merge(metrics if isinstance(metrics, Metrics) else Metrics(metrics))

    def warn(self, text: str) -> None:
        """Something that a person should look at, on the console and in `logs/warnings.log`."""
        self.console.print(f"  warning: {text}")
        with (self.directory.path / "logs" / "warnings.log").open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now().isoformat(timespec='seconds')} {text}\n")

    @contextmanager
    def timed(self, what: str, step: int, waits_for: str) -> Iterator[None]:
        """Add the block's seconds to the step's `time/<what>`; who takes very long is named (`waits_for`, at `run.warn_after_s`)."""
        began = time.monotonic()
        with self._watchdog.waiting(f"step {step}: {what} waits for {waits_for}"):
            yield
        self._metrics[step].record(f"time/{what}", time.monotonic() - began, "sum")

    def progress(self, what: str, done: int, total: int, stats: Mapping[str, float]) -> None:
        """A line now and then for work that is not a step."""
        if done == total or done % max(1, total // 5) == 0:
            self.console.print(f"  {what}: {done}/{total} | loss {stats['loss']:.3f}")

    async def steps(self, served: Callable[[int], Awaitable[None]]) -> AsyncIterator[int]:
        """The steps to train; evaluates the policy that a step begins with when it is due, and the last one at the end.

        `served(version)` waits until the policy servers have a version, which an evaluation needs.
        """
        steps, every = self.recipe.run.steps, self.recipe.eval.every
        for step in range(self.first_step, steps):
            self._step, self._step_began = step, time.monotonic()
            if step == 0 or (every and step % every == 0):
                await served(step)
                with self.timed("eval", step, "the scores of the policy servers"):
                    await self._evaluate(step)
            if not self._stepping:
                self._stepping, self._training_began = True, time.monotonic()
                self.console.print(f"  first training step {self._training_began - self.began:.1f} s after the start")
                self._record_beginning(step)
            yield step
        self._step, self._stepping = steps, False
        await served(steps)
        if self._evaluator:
            await self._evaluate(steps)
            self._write(steps)

    def _record_beginning(self, step: int) -> None:
        """A run that goes on says so in its step's metrics and its events."""
        if self._restarts:
            self.record(
                step, {"recovery/restarts": self._restarts, "recovery/seconds": self._training_began - self.began}
            )
        event = "restarted" if self._restarts else "resumed" if self.checkpoint else "began"
        self.directory.write_event(event, step=step, seconds=self._training_began - self.began)

    async def finish(self, step: int, groups: list[Group]) -> None:
        """End a step: checkpoint when it is due, episodes, metrics to every backend, the console's line."""
        recipe, done, self.trained = self.recipe, step + 1, True
        end = self._end  # now: a signal that comes meanwhile ends the run after the next step
        due = recipe.checkpoint.every and done % recipe.checkpoint.every == 0
        if due or done == recipe.run.steps or end:
            await self._save(done)
        if recipe.metrics.rollouts_every and step % recipe.metrics.rollouts_every == 0:
            self.directory.write_rollouts(step, groups)
        await self._record_busy(step)
        metrics, now = self._metrics[step], time.monotonic()
        step_s = now - self._step_began
        metrics.record("time/step", step_s)
        metrics.record("perf/tokens_per_s", metrics.reduce().get("tokens/sampled", 0.0) / step_s)
        left_s = (now - self._training_began) / (done - self.first_step) * (recipe.run.steps - done)
        reduced = self._write(step)
        self.console.print(step_line(step, recipe.run.steps, reduced, recipe.rollout.groups_per_step, left_s))
        if end and done < recipe.run.steps:
            end()
            await asyncio.Future()  # nothing more is begun until the cancellation arrives

    def end_soon(self, end: Callable[[], None]) -> bool:
        """Call `end` after the step that is being trained, with a checkpoint of it; False when none is being trained."""
        if self._stepping:
            self._end = end
            self.console.print("  SIGTERM: ends after this step, with a checkpoint; another signal ends it at once")
        return self._stepping

    async def _save(self, done: int) -> None:
        """A checkpoint. One that fails is a warning as long as the run goes on, and will be tried again at the next."""
        try:
            with self.timed("checkpoint", done - 1, "the trainer to write its files"):
                async with self.directory.checkpoints.save(done, self.recipe.checkpoint.keep) as folder:
                    await self.mesh.trainer.save(str(folder))
            self.saved = True
            self.mesh.replacements.forgive()
        except (OSError, ActorFailure) as error:
            if done == self.recipe.run.steps or self._end:
                raise RLMeshError(f"{self.directory.path}: step {done} could not be saved: {error}") from error
            self.warn(f"step {done} could not be saved: {error}")

    def on_death(self, death: ActorDied) -> None:
        """The run goes on with another actor in its place."""
        count, limit = self.mesh.replacements.counts[death.actor], self.recipe.run.max_restarts
        self.directory.write_event("actor died", actor=death.actor, error=str(death), replacements=count)
        self.warn(f"{death}; it is being replaced, time {count} of {limit}")

    def on_replaced(self, actor: str, seconds: float) -> None:
        """It is there."""
        self._metrics[self._step].record("recovery/replaced", 1, "sum")
        self._metrics[self._step].record("recovery/replaced_s", seconds, "max")
        self.directory.write_event("actor replaced", actor=actor, step=self._step, seconds=seconds)
        self.console.print(f"  {actor} was replaced in {seconds:.1f} s")

    async def _record_busy(self, step: int) -> None:
        """Shares of the step in which policy and trainer computed, and in which both did."""
        policy, trainer = await together(self.mesh.policy.each("busy"), self.mesh.trainer.busy())
        now = time.monotonic()
        this_step = [(self._step_began, now)]  # the first answers go back to the start
        busy = {
            "policy": intersection(merged([i for replica in policy for i in replica]), this_step),
            "trainer": intersection(merged(trainer), this_step),
        }
        elapsed = now - self._step_began
        for name, intervals in busy.items():
            self.record(step, {f"perf/{name}_busy_share": length(intervals) / elapsed})
        self.record(step, {"perf/both_busy_share": length(intersection(*busy.values())) / elapsed})

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Within the block, who waits for whom for too long is named."""
        watching = asyncio.create_task(self._watchdog.watch())
        try:
            yield
        finally:
            watching.cancel()

    def conclude(self) -> None:
        """The report at the end: the evaluation's tables and pictures, the learning curve, and where everything is."""
        path = self.directory.path
        references = self.report.references if self.report else {}
        if self.report:
            for table in self.report.tables:
                self.console.print(table)
            (path / "eval" / f"{self.recipe.eval.name}.json").write_bytes(
                orjson.dumps(self.report.data, option=orjson.OPT_INDENT_2)
            )
            with running(self.recipe.eval.name, "eval.name"):
                self._evaluator.plot(self.report, path / "plots" / f"{self.recipe.eval.name}.png")
        if self.recipe.metrics.jsonl:
            plot_learning_curve(path / "metrics.jsonl", path / "plots" / "learning_curve.png", references)
        took = duration(time.monotonic() - self.since)
        self.console.print(
            f"done in {took}; everything is in {path}: metrics.jsonl, rollouts/, checkpoints/, plots/, eval/, logs/"
        )

    def close(self) -> None:
        for backend in self._backends:
            backend.close()

    def _write(self, step: int) -> dict[str, float]:
        reduced = self._metrics.pop(step).reduce()
        reduced["time/since_start"] = time.monotonic() - self.since
        for backend in self._backends:
            backend.write(step, reduced)
        for warning in self._watch.observe(reduced, self.report.references if self.report else {}):
            self.warn(f"step {step}: {warning}")
        return reduced

    async def _evaluate(self, step: int) -> None:
        if self._evaluator:
            asking = ask(self.mesh.rollout.render, self.mesh.policy.score)
            self.report = await evaluate(self._evaluator, self.recipe.eval.name, asking)
            self.record(step, self.report.metrics)
            shown = ", ".join(f"{name.rpartition('/')[2]} {value:.4f}" for name, value in self.report.metrics.items())
            self.console.print(f"  evaluation of version {step}: {shown}")


def run(recipe: Recipe, resume: bool = False) -> None:
    """Run a checked recipe to its end, in its run directory; with `resume` from the newest checkpoint there, if there is one.

    Raises: RLMeshError when the run cannot begin or an actor fails, KeyboardInterrupt after Ctrl-C and after SIGTERM (its
    argument says which); nothing is left running then.
    """
    check_versions()
    recipe = check_recipe(recipe)
    directory = RunDirectory(Path(recipe.run.dir))
    console, resumed = Console(recipe.metrics.console), None
    if resume:
        resumed = directory.resume(recipe, lambda text: console.print(f"  warning: {text}"))
    else:
        directory.begin(recipe)
    with interruptible():
        _run_in(directory, recipe, console, resumed)


def _run_in(directory: RunDirectory, recipe: Recipe, console: Console, resumed: tuple[int, Path] | None) -> None:
    state, restarts, kept, began = None, 0, resumed is not None, time.monotonic()
    try:
        from rlmesh.mesh.actor_mesh import ActorMesh  # heavy; here Ctrl-C ends it at once

        console.print(f"{recipe.run.name}: {recipe.run.steps} steps of {recipe.algorithm.name}, in {directory.path}")
        while True:
            state = Run(recipe, directory, console, resumed, restarts)
            state.since = began
            try:
                asyncio.run(
                    until_stopped(_run(state, ActorMesh(recipe, console.waiting, listener=state)), soon=state.end_soon)
                )
                return
            except ActorDied as death:
                kept = kept or state.trained
                restarts = 1 if state.saved else restarts + 1
                replaced = state.mesh.replacements.counts[death.actor] if state.mesh else 0
                if replaced == recipe.run.max_restarts:  # in vain: it is not worth as many restarts again
                    restarts += replaced
                resumed = _after(death, state, restarts if kept else None)
    except Exception:
        with (directory.path / "logs" / "controller.log").open("a", encoding="utf-8") as log:
            traceback.print_exc(file=log)
        raise
    finally:
        if state:
            state.close()
        if not (kept or (state and state.trained)):  # what failed at its start may be started again under the same name
            directory.forget()
        directory.close()


def _after(death: ActorDied, state: Run, restarts: int | None) -> tuple[int, Path] | None:
    """Where a run goes on whose actor died: the newest checkpoint, None to begin again. Raises the death when it does not."""
    directory, limit = state.directory, state.recipe.run.max_restarts
    directory.write_event("actor died", actor=death.actor, error=str(death), restarts=restarts or 0)
    if restarts is None or restarts > limit:
        often = (
            f" (the run went on {limit} times after such a death, without a new checkpoint)"
            if restarts and limit
            else ""
        )
        raise ActorFailure(f"{death}{often}{directory.last_words(death.actor)}") from death
    state.close()
    found = directory.go_back(state.warn)
    where = "going on from the newest checkpoint" if found else "beginning again, because there is no checkpoint yet"
    cause = death.__cause__
    met = f" (met as: {cause})" if isinstance(cause, RLMeshError) else ""  # perhaps an error of its own
    state.warn(f"{death}{met}; {where}, restart {restarts} of {limit}")
    return found


async def _run(run: Run, mesh: ActorMesh) -> None:
    from rlmesh.algorithms.grpo import grpo

    if run.checkpoint:
        run.console.print(f"  goes on after step {run.first_step - 1}, from {run.checkpoint}")
    if run.first_step == run.recipe.run.steps:
        run.console.print(f"  all {run.first_step} steps are trained; only the last evaluation is made again")
    async with mesh:
        run.mesh = mesh
        async with run.watched():
            await mesh.guard(grpo(mesh, run.recipe, run))
    run.conclude()


if __name__ == "__main__":
    from rlmesh.cli import program

    program(["run", *sys.argv[1:]])
