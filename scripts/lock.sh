#!/usr/bin/env bash
# Regenerate requirements/cpu.txt and requirements/gpu.txt from the .in files.
#
# The resolver keeps the versions that are pinned already and changes only what an edited .in file asks for;
# delete a .txt first to move everything to its newest version. The +cpu build of torch is taken from PIP_FIND_LINKS
# when that is set, and from PyTorch's own CPU index otherwise.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
UV=${UV:-uv}
command -v "$UV" >/dev/null || { echo "lock.sh needs uv: pip install uv" >&2; exit 1; }
cpu_torch=(--extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match)
[ -n "${PIP_FIND_LINKS:-}" ] && cpu_torch=(--find-links "$PIP_FIND_LINKS")

lock() { # name, torch pin, further arguments
    local name=$1 torch=$2
    shift 2
    { cat overrides.txt; echo "$torch"; } >".overrides.$name"
    "$UV" pip compile "$name.in" -o "$name.txt" --override ".overrides.$name" --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet "$@"
    rm -f ".overrides.$name"
    echo "requirements/$name.txt: $(wc -l <"$name.txt") packages"
}
lock cpu "torch==2.13.0+cpu" "${cpu_torch[@]}"
lock gpu "torch==2.14.0"
