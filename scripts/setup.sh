#!/usr/bin/env bash
# Create .venv with the pinned closure (requirements/cpu.txt, or the file in REQUIREMENTS) and rlmesh itself.
#
# The closure is installed with --no-deps: several packages in it pin each other inconsistently (see
# docs/explanation/dependencies.md), so that a resolver would refuse what runs. Nothing is done when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=${REQUIREMENTS:-requirements/cpu.txt}
needed_gib=7
log=.venv/setup.log

fail() { echo "setup: $*" >&2; exit 1; }

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || fail "Python 3.11 is needed, and there is no '$python' here: install it, or set PYTHON=/path/to/python3.11"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$version" = 3.11 ] || fail "Python 3.11 is needed (the pinned packages are built for it), but '$python' is $version: set PYTHON=/path/to/python3.11"
[ -f "$requirements" ] || fail "there is no $requirements: REQUIREMENTS names requirements/cpu.txt or requirements/gpu.txt"

stamp=$(cat "$requirements" pyproject.toml envs/*/pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)
[ "$(cat .venv/.stamp 2>/dev/null)" = "$stamp" ] && exit 0

if [ ! -x .venv/bin/torchrun ]; then # a new environment, not an update of one
    free_gib=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
    [ "$free_gib" -ge "$needed_gib" ] || fail "$needed_gib GiB of disk are needed for .venv, and $PWD has $free_gib GiB free"
fi
"$python" -m venv .venv || fail "'$python -m venv' failed: install the venv module of your Python (Debian: python3.11-venv)"

install() { # pip, quietly; the whole output is in the log
    .venv/bin/python -m pip install --disable-pip-version-check --no-deps --progress-bar off "$@" >>"$log" 2>&1
}
reason() { # the line of the log that says why
    grep -E 'No space left|^ERROR' "$log" | tail -n 1 || tail -n 1 "$log"
}

echo "setup: installing $(grep -c == "$requirements") pinned packages into .venv (a few minutes; log: $log)"
: >"$log"
torch=$(grep '^torch==' "$requirements")
# The +cpu build of torch is not on PyPI: take it from where pip is set up to look, else from PyTorch's own index.
install "$torch" || install "$torch" --index-url https://download.pytorch.org/whl/cpu || fail "cannot install $torch: $(reason)"
install -r "$requirements" || fail "cannot install $requirements: $(reason)"
for project in . envs/*/; do
    install --no-build-isolation --editable "$project" || fail "cannot install $project: $(reason)"
done
echo "$stamp" >.venv/.stamp
echo "setup: done"
