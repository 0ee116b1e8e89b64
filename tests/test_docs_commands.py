"""Every command and program of the documentation, run: page by page, in the order in which a reader meets them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import tiny_model

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
SMALL = ["run.steps=2", "rollout.groups_per_step=4", "rollout.group_size=4", "warm_start.steps=2", "checkpoint.every=1"]
SKIPPED = ("make ", "git ")  # what they do is run by the line that each of them stands for


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of every code block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The lines of a block that are commands, without their remarks; a `\\` at the end joins two lines."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if re.match(r"(\.venv/bin/|make |git |python )", line)]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """A copy of what a clone has at its root, so that runs land elsewhere."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("configs", "examples", "envs", "scripts", "docs"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def run(command: list[str], workspace: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(workspace), *filter(None, sys.path)])}
    environment |= {"TRACKIO_DIR": str(workspace / "trackio"), "HF_HUB_OFFLINE": "1"}  # not in the user's own files
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_says_works(page, workspace):
    if page.name != "README.md" and not (workspace / "my_model").exists():  # README.md exports it
        tiny_model(workspace / "my_model")
    for language, text in blocks(page):
        if language == "python":
            name = re.match(r"# (\S+\.py)\n", text)
            path = workspace / (name[1] if name else "block.py")
            path.write_text(text)
            if not name:
                run([sys.executable, str(path)], workspace)
        for command in commands(text) if not language else []:
            if command.startswith(SKIPPED):
                continue
            words = shlex.split(re.sub(r"--steps \d+", "--steps 2", command), comments=True)
            if "rlmesh.run" in words and "--dry-run" not in words:
                words += SMALL
            run(words, workspace)


def test_make_runs_what_the_documentation_runs():
    shown = subprocess.run(["make", "-n", "blackjack"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m rlmesh.run configs/blackjack.yaml" in shown
