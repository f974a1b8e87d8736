#!/usr/bin/env bash
# Usage: bash .ci/setup.sh .venv
# Makes a virtual environment and installs memscale into it, editable, with everything the tests need.
# Uses uv when it can be had (seconds), plain pip otherwise or with MEMSCALE_SETUP=pip (minutes). Running it twice is harmless.
set -euo pipefail
venv=${1:?usage: bash .ci/setup.sh FOLDER}
python=${PYTHON:-python3}
unset PYTHONDONTWRITEBYTECODE

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Any Python 3.11-3.13 will do; `python3` itself may be older than another one beside it.
supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
if ! supported "$python"; then
    for candidate in python3.12 python3.13 python3.11; do
        if supported "$candidate"; then python=$candidate; break; fi
    done
fi
supported "$python" || fail "needs Python 3.11, 3.12 or 3.13; found $("$python" --version 2>&1 || echo none). Install one, or run: make setup PYTHON=/path/to/python3.12"

if ! supported "$venv/bin/python"; then
    say "making $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv" || fail "'$python -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv"
fi

extras='.[dev]'
start=$SECONDS
if [ "${MEMSCALE_SETUP:-}" = pip ]; then
    uv=
elif command -v uv >/dev/null 2>&1; then
    uv=uv
elif "$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'uv>=0.5' 2>/dev/null; then
    uv=$venv/bin/uv
else
    uv=
fi
if [ -n "$uv" ] && say "installing memscale and what it needs with uv (about 2.5 GB on disk; less than a minute on a good network)" \
    && UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}" "$uv" pip install --quiet --python "$venv/bin/python" -c constraints.txt -e "$extras"; then
    :
else
    # Not --quiet: on a slow network it is twelve minutes in which a person wants to see something.
    say "installing with pip (two to twelve minutes); it says what it downloads"
    "$venv/bin/python" -m pip install --disable-pip-version-check -c constraints.txt -e "$extras"
fi
say "installed in $((SECONDS - start)) s; the command is $venv/bin/memscale"

# uv leaves compiling to whoever imports first: half a minute for each process of a first test run, all of the same files.
say "compiling what commands and tests import (half a minute)"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
used=(alembic fontTools/ttLib IPython mlflow opentelemetry ray/_private ray/autoscaler ray/core ray/dashboard sqlalchemy
    torch/_inductor torch/distributed transformers/generation transformers/integrations transformers/quantizers)
"$venv/bin/python" -m compileall -q "${used[@]/#/$packages/}" >/dev/null || true &
"$venv/bin/python" -m pytest --collect-only -q >/dev/null || true
wait
