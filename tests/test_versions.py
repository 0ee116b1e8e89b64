"""Another version of the stack than the pinned one is told before anything starts."""

import importlib.metadata
import re
from pathlib import Path

import pytest

from rlmesh import versions
from rlmesh.errors import RLMeshError
from rlmesh.versions import PINNED, check_versions

REQUIREMENTS = Path(__file__).parents[1] / "requirements"


@pytest.mark.parametrize("kind", PINNED)
def test_they_are_those_of_the_requirements(kind):
    pinned = dict(re.findall(r"^([\w-]+)==([^\s+;]+)", (REQUIREMENTS / f"{kind}.txt").read_text(), re.MULTILINE))
    assert PINNED[kind] == {package: pinned[package] for package in PINNED[kind]}


def test_what_is_installed_here_is_accepted():
    check_versions()


@pytest.mark.parametrize(
    "package, found, complaint",
    [
        ("torch", "2.12.1+cpu", r"torch 2\.12\.1 \(wanted 2\.13\.0\); .* -r requirements/cpu\.txt"),
        ("torchstore", None, r"torchstore is missing \(wanted 0\.1\.2\)"),
    ],
)
def test_another_version_is_named(monkeypatch, package, found, complaint):
    def version(name):
        if name != package:
            return importlib.metadata.version(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(versions, "version", version)
    with pytest.raises(RLMeshError, match=complaint):
        check_versions()
