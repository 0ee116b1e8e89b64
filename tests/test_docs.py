"""The documentation is what the code says, and its links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "envs" / "blackjack" / "README.md"]


def test_the_reference_is_made_from_the_code():
    subprocess.run([sys.executable, "scripts/make_reference.py", "--check"], cwd=ROOT, check=True)


def test_every_option_says_what_it_means():
    rows = re.findall(r"^\| `.*\|(.*)\|$", (ROOT / "docs" / "reference" / "recipe.md").read_text(), re.MULTILINE)
    assert len(rows) > 80 and all(meaning.strip() for meaning in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_recipes_are_accepted(page, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    text = page.read_text()
    for name, module in re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(module)
    for command in re.findall(r"^\.venv/bin/python -m rlmesh\.run (configs/\S+\.yaml.*)", text, re.MULTILINE):
        # a folder that the page's commands make is not there yet
        arguments = [a for a in shlex.split(command, comments=True) if not a.startswith(("model.source=", "--"))]
        done = subprocess.run(
            [sys.executable, "-m", "rlmesh.run", *arguments, "--dry-run"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
