"""Anything swappable in a recipe is an import path: `my_package.my_module.my_function`."""

import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from rlmesh.errors import RecipeError, RLMeshError

# Frames of libraries, and of rlmesh itself, are not where a user looks for the fault.
_NOT_THE_USERS = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_NOT_THE_USERS += (str(Path(__file__).parent), "<frozen")


def import_path(path: str, key: str) -> Callable:
    """The object at a dotted path; `key` is the recipe's key that names it, for the error."""
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise RecipeError(f"{key}: '{path}' is not an import path such as my_package.my_module.my_function")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise RecipeError(f"{key}: cannot import '{path}': there is no module '{error.name}'") from error
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        raise RecipeError(f"{key}: cannot import '{path}': {described(error)}") from error
    try:
        found = getattr(module, name)
    except AttributeError:
        raise RecipeError(f"{key}: module '{module_name}' has no '{name}'") from None
    if not callable(found):
        raise RecipeError(f"{key}: '{path}' is no function or class, but {type(found).__name__}")
    return found


@contextmanager
def running(path: str, key: str) -> Iterator[None]:
    """Whatever goes wrong in the block is the fault of the code that the recipe's key names. Raises: RecipeError that says so."""
    try:
        yield
    except RLMeshError:
        raise
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{key}: {path} failed: {described(error)}") from error


def described(error: BaseException) -> str:
    """An error of code that is not rlmesh's, in one line: its type, its text, and the place in the user's file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_THE_USERS)]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"
