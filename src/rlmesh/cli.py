"""The command line: `rlmesh run`, `eval`, `export`, `drift`, `rollouts`, `stacks`. Errors are one sentence, without a traceback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Optional

import typer

from rlmesh.errors import RecipeError, RLMeshError
from rlmesh.imports import described
from rlmesh.models.source import missing_folder
from rlmesh.recipe import Recipe, load_recipe, recipe_yaml
from rlmesh.stopping import interruptible

_SHOWN_GROUPS = 2  # of a step, unless one is asked for

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Reinforcement learning of language models.",
)


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="the recipe (YAML)")],
    overrides: Annotated[Optional[list[str]], typer.Argument(help="key=value, for example run.steps=10")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check the recipe, print it resolved and what runs where, start nothing")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on from the newest checkpoint in run.dir; begin where there is none")
    ] = False,
) -> None:
    """Train what a recipe describes."""
    loaded = load_recipe(recipe, overrides or [])
    # Not a fault of the recipe as such: a run's saved one is read when the folder that it began with may be gone.
    if not loaded.model.config and (problem := missing_folder(loaded.model.source)):
        raise RecipeError(problem)
    if dry_run:
        print_dry_run(loaded)
        return
    with _stoppable():
        from rlmesh.run import run as run_recipe  # heavy: what the run needs

        run_recipe(loaded, resume)


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")],
    out: Annotated[Path, typer.Argument(help="the folder to write")],
    step: Annotated[Optional[int], typer.Option(help="the checkpoint's step (default: the newest)")] = None,
) -> None:
    """Write a checkpoint's model as an ordinary Hugging Face folder."""
    from rlmesh.run_directory import RunDirectory

    exported = RunDirectory(directory).export(out, step)
    typer.echo(f"{out}: the model of {directory} after {exported} steps")


@app.command("eval")
def evaluate(
    target: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="a run directory, or a model's folder or hub id")],
    recipe: Annotated[Optional[Path], typer.Option(help="the recipe whose evaluation a MODEL gets")] = None,
    step: Annotated[
        Optional[int], typer.Option(help="the checkpoint's step (default: the newest; 0: the model before training)")
    ] = None,
) -> None:
    """Evaluate a run's checkpoint, the model that it began with, or any model."""
    from rlmesh.metrics.console import Console

    console = Console()
    with _stoppable():
        from rlmesh.evaluate import evaluate as evaluate_model  # heavy: Monarch and transformers

        report = evaluate_model(target, recipe, step, console)
    for table in report.tables:
        console.print(table)
    for name, value in report.metrics.items():
        console.print(f"{name}: {value:.4f}")


@app.command()
def drift(
    recipe: Annotated[Path, typer.Argument(help="the recipe (YAML)")],
    overrides: Annotated[
        Optional[list[str]], typer.Argument(help="key=value, for example policy.engine.dtype=bfloat16")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="how many sampled tokens are compared, about")] = 2000,
) -> None:
    """Measure how far the logprobs of a recipe's policy server are from its trainer's, for the same weights."""
    from rlmesh.metrics.console import Console

    loaded, console = load_recipe(recipe, overrides or []), Console()
    with _stoppable():
        from rlmesh.drift import drift as measure  # heavy: Monarch
        from rlmesh.drift import table

        comparisons = measure(loaded, tokens, console)
    console.print(table(loaded, comparisons))


@app.command()
def rollouts(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")],
    step: Annotated[
        Optional[int], typer.Option(help="the training step (default: the newest that was written)")
    ] = None,
    group: Annotated[Optional[int], typer.Option(help="one group, whole")] = None,
) -> None:
    """Show a step's episodes: prompts, answers, rewards, advantages and the versions that made them."""
    from rich.console import Console

    from rlmesh.show import group_panel, pick_group, prompt_decoder, read_rollouts

    step, groups = read_rollouts(directory, step)
    console, decode = Console(highlight=False), prompt_decoder(directory)
    console.print(f"step {step} of {directory}: {len(groups)} groups", soft_wrap=True, markup=False)
    chosen = groups if group is None else pick_group(groups, group)
    for number in list(chosen)[:_SHOWN_GROUPS]:
        console.print(group_panel(number, groups[number], decode))
    if (left := len(chosen) - _SHOWN_GROUPS) > 0:
        console.print(f"{left} more {'group' if left == 1 else 'groups'}; --group N shows one of them")


@app.command()
def stacks(directory: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")]) -> None:
    """Show where every process of a live run is."""
    from rlmesh.stacks import stacks as stacks_of

    for title, stack in stacks_of(directory):
        typer.echo(f"== {title}\n{stack}\n")


def print_dry_run(recipe: Recipe) -> None:
    """The resolved recipe, and which actor runs where; imports neither torch, vLLM nor Monarch."""
    from rich.console import Console
    from rich.table import Table

    from rlmesh.mesh.plan import plan_placement
    from rlmesh.recipe_checks import needed_actors

    typer.echo(recipe_yaml(recipe))
    table = Table(
        "actor",
        "replica",
        "hosts",
        "procs",
        "GPUs of each proc",
        "threads",
        title=f"placement ({recipe.placement.job} job)",
    )
    for actor, replicas in plan_placement(recipe.placement, needed_actors(recipe)).items():
        placed = getattr(recipe.placement.actors, actor)
        for index, plan in enumerate(replicas):
            hosts = f"{placed.hosts}[{', '.join(map(str, plan.hosts))}]"
            gpus = " ".join(",".join(map(str, proc)) or "-" for host in plan.gpus for proc in host)
            table.add_row(actor, str(index), hosts, str(placed.procs), gpus, str(placed.threads))
    Console().print(table)
    typer.echo(f"{recipe.run.name} is valid; nothing was started")


def program(arguments: Sequence[str] | None = None) -> None:
    """`main` as a process of its own."""
    code = 0
    try:
        main(arguments)
    except SystemExit as end:
        code = end.code or 0
    if "monarch" in sys.modules:
        from rlmesh.mesh.scratch import leave

        leave()
        # All is stopped, written and closed; what Monarch does at Python's exit now and then aborts the process.
        with suppress(OSError):  # nobody may be reading any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and do what it says. Ends with SystemExit, code 0: done; 2: the recipe or the command is wrong; 130: stopped by Ctrl-C; 143: by SIGTERM; 1: anything else."""
    try:
        sys.path.insert(0, os.getcwd())  # a reward, a loss or an evaluator may lie in the working directory
        app(args=arguments, prog_name="rlmesh")
    except RecipeError as error:
        _fail(error, 2)
    except RLMeshError as error:
        _fail(error, 1)
    except BrokenPipeError:  # whoever was reading has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        _fail(f"{error.filename or 'this machine'}: {error.strerror or error}", 1)
    except Exception as error:  # nobody foresaw it; of a run, logs/controller.log has the traceback
        if os.environ.get("RLMESH_TRACEBACK"):
            raise
        _fail(f"{described(error)} (RLMESH_TRACEBACK=1 shows the way there)", 1)


@contextmanager
def _stoppable() -> Iterator[None]:
    try:
        with interruptible():
            yield
    except KeyboardInterrupt as stop:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second one would break off what the libraries do at exit
            signal.signal(number, signal.SIG_IGN)
        number = stop.args[0] if stop.args else signal.SIGINT
        _fail(f"stopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}", 128 + number)


def _fail(error: RLMeshError | str, code: int) -> None:
    print(f"rlmesh: {error}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    program()
