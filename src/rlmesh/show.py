"""`rlmesh rollouts`: the episodes of a step as a person reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
from rich.console import Group as Lines
from rich.panel import Panel
from rich.text import Text

from rlmesh.errors import RLMeshError
from rlmesh.models.folder import read_tokenizer
from rlmesh.recipe import load_recipe
from rlmesh.run_directory import RunDirectory

_REPEATED = 120  # characters of a prompt that are shown again

Record = dict[str, Any]  # a line of `rollouts/step_N.jsonl`


def read_rollouts(run: Path, step: int | None) -> tuple[int, dict[int, list[Record]]]:
    """The step and its episodes by group; the newest step that was written by default. Raises: RLMeshError."""
    RunDirectory(run).require_run()
    found = {path.stem.removeprefix("step_"): path for path in (run / "rollouts").glob("step_*.jsonl")}
    files = {int(number): path for number, path in found.items() if number.isdecimal()}
    if not files:
        raise RLMeshError(f"{run} has no episodes (metrics.rollouts_every says how often they are written)")
    step = max(files) if step is None else step
    if step not in files:
        raise RLMeshError(f"{run} has no episodes of step {step}; it has {_listed(files)}")
    groups: defaultdict[int, list[Record]] = defaultdict(list)
    for number, line in enumerate(files[step].read_bytes().splitlines(), start=1):
        try:
            record = orjson.loads(line)
            groups[record["group"]].append(record)
        except (ValueError, TypeError, KeyError) as error:
            raise RLMeshError(f"{files[step]}, line {number}: it is not an episode ({error})") from error
    return step, dict(groups)


def pick_group(groups: dict[int, list[Record]], group: int) -> dict[int, list[Record]]:
    """That group alone. Raises: RLMeshError."""
    if group not in groups:
        raise RLMeshError(f"there is no group {group} in that step; it has {_listed(groups)}")
    return {group: groups[group]}


def prompt_decoder(run: Path) -> Callable[[list[int]], str]:
    """Tokens to text, by the tokenizer of the run's own model."""
    source = Path(load_recipe(run / "recipe.yaml").model.source).expanduser()
    folders = [run / "model", source, *sorted(run.glob("checkpoints/step_*/model"))]
    folder = next((folder for folder in folders if (folder / "tokenizer.json").exists()), None)
    if folder is None:
        return lambda tokens: f"({len(tokens)} tokens; there is no tokenizer in {run} before its first checkpoint)"
    tokenizer = read_tokenizer(folder)
    return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False)


def group_panel(number: int, episodes: list[Record], decode: Callable[[list[int]], str]) -> Panel:
    """One group: each episode's turns as the model saw them, and what came of it."""
    rewards = [episode["reward"] for episode in episodes if episode["reward"] is not None]
    title = f"group {number}: {len(rewards)} of {len(episodes)} episodes scored"
    if rewards:
        title += f", reward {sum(rewards) / len(rewards):+.3f} ({min(rewards):+.3f} to {max(rewards):+.3f})"
    shown: set[tuple[int, ...]] = set()
    return Panel(Lines(*(line for episode in episodes for line in _episode(episode, decode, shown))), title=title)


def _episode(episode: Record, decode: Callable[[list[int]], str], shown: set[tuple[int, ...]]) -> Iterator[Text]:
    """An episode's lines. What is above already is cut short: long prompts in `shown`, and this episode's turns."""
    head = f"episode {episode['episode']} | reward {_number(episode['reward'])} | advantage {_number(episode['advantage'])}"
    head += f" | {episode['outcome']}" + (" | truncated" if episode["truncated"] else "")
    yield Text(head, style="bold")
    if error := episode["metadata"].get("error"):
        yield Text(f"  {error}", style="red")
    before: list[int] = []
    for turn in episode["turns"]:
        low, high = turn["versions"]
        version = f"version {low}" if low == high else f"versions {low} to {high}"
        yield Text(f"  {_prompt(turn['prompt'], before, decode, shown)}", style="dim")
        before = turn["prompt"] + turn["tokens"]
        answer = Text(f"  {turn['action']}", style="green")
        answer.append(
            f"   {len(turn['tokens'])} tokens, logprob {sum(turn['logprobs']):.3f}, {turn['finish_reason']}, {version}, "
            f"reward {_number(turn['reward'])}",
            style="not green dim",
        )
        yield answer


def _prompt(
    prompt: list[int], before: list[int], decode: Callable[[list[int]], str], shown: set[tuple[int, ...]]
) -> str:
    if before and prompt[: len(before)] == before:
        return f"(the turns above) {decode(prompt[len(before) :])}"
    text = decode(prompt)
    if tuple(prompt) in shown and len(text) > _REPEATED:
        return f"(shown above) ... {text[-_REPEATED:]}"
    shown.add(tuple(prompt))
    return text


def _listed(numbers: Iterable[int]) -> str:
    """
    >>> _listed([4, 2, 8]), _listed(range(0, 90, 10))
    ('2, 4, 8', '9 from 0 to 80, the last ones 50, 60, 70, 80')
    """
    ordered = sorted(numbers)
    if len(ordered) <= 8:
        return ", ".join(map(str, ordered))
    return f"{len(ordered)} from {ordered[0]} to {ordered[-1]}, the last ones {', '.join(map(str, ordered[-4:]))}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:+.3f}"
