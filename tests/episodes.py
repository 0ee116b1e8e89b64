"""Episodes for the tests, written by hand."""

from rlmesh.rollout.types import Completion, Episode, Group, Task, Turn


def turn(prompt, tokens, logprobs=None, version=0, reward=0.0, finish="stop"):
    logprobs = [-0.1 * (i + 1) for i in range(len(tokens))] if logprobs is None else logprobs
    return Turn(
        "observation",
        list(prompt),
        Completion(list(tokens), logprobs, finish, [version] * len(tokens)),
        "action",
        reward,
    )


def group(rewards, step=0, index=0, version=0, turns=None):
    task = Task(step=step, index=index, group_size=len(rewards), seed=1, shared_seed=2)
    episodes = [
        Episode(id=f"{index}-{i}", index=i, turns=list(turns or [turn([5, 6], [7, 2], version=version)]), reward=reward)
        for i, reward in enumerate(rewards)
    ]
    return Group(task, episodes)
