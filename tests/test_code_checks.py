"""Code that a recipe names is checked without being imported."""

import sys

import pytest

from rlmesh.code_checks import code_problems

MODULE = """
import json
import not_installed_anywhere.inner
from functools import cache


def plain(episode, bonus, scale=1.0, *, low=0.0, high): ...
def anything(episode, **rest): ...
def by_name(*, episode): ...
def data(count, *, seed, rules="a"): ...
@cache
def decorated(episode): ...
class Mine:
    def __init__(self, size, rules="a"): ...
class Inherits(dict): ...
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    def write(text):
        (tmp_path / "some_users_module.py").write_text(text)
        return "some_users_module"

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    assert "some_users_module" not in sys.modules


GOOD = {"bonus": 1, "high": 2}


@pytest.mark.parametrize(
    "name, args, passed, problems",
    [
        ("plain", GOOD, {"places": 1}, []),
        ("plain", {**GOOD, "scale": 2, "low": 1}, {"places": 1}, []),
        ("plain", {**GOOD, "bonsu": 1}, {"places": 1}, ["x.args.bonsu: {} has no such argument; did you mean 'bonus'?"]),
        ("plain", {**GOOD, "episode": 1}, {"places": 1}, ["x.args.episode: {} has no such argument; it takes bonus, scale, low, high"]),
        ("plain", {}, {"places": 1}, ["x.args.bonus: {} needs this argument", "x.args.high: {} needs this argument"]),
        ("anything", {"whatever": 1}, {"places": 1}, []),
        ("decorated", {"whatever": 1}, {"places": 1}, []),
        ("data", {}, {"given": ["seed", "count"]}, []),
        ("data", {"rule": 1}, {"given": ["seed", "count"]}, ["x.args.rule: {} has no such argument; did you mean 'rules'?"]),
        ("by_name", {}, {"places": 1}, ["x.name: {} takes no argument by its place, where it is given 1"]),
        ("anything", {}, {"places": 1, "given": ["clip_low"]}, []),
        ("data", {}, {"places": 1, "given": ["seed", "clip_low"]}, ["x.name: {} is given an argument 'clip_low', which it does not take"]),
        ("Mine", {"size": 1}, {}, []),
        ("Mine", {"self": 1}, {}, ["x.args.self: {} has no such argument; did you mean 'size'?", "x.args.size: {} needs this argument"]),
        ("Inherits", {"whatever": 1}, {}, []),
        ("cache", {"whatever": 1}, {}, []),
    ],
)  # fmt: skip
def test_arguments_that_the_code_does_not_take(module, name, args, passed, problems):
    path = f"{module(MODULE.replace('import not_installed_anywhere.inner', ''))}.{name}"
    assert list(code_problems("x.name", path, args=args, **passed)) == [text.format(path) for text in problems]


def test_a_package_that_the_module_needs_and_that_is_not_there(module):
    path = f"{module(MODULE)}.anything"
    [problem] = code_problems("x.name", path)
    assert problem.startswith(f"x.name: cannot import '{path}': there is no module 'not_installed_anywhere' (")
    assert problem.endswith("some_users_module.py, line 3)")


def test_a_package_that_the_module_can_do_without(module):
    text = "try:\n    import not_installed_anywhere\nexcept ImportError:\n    pass\ndef f(x): ...\n"
    assert list(code_problems("x.name", f"{module(text)}.f")) == []
