#!/usr/bin/env bash
# Drives the built programs with real clients: tests/e2e/run.sh [pytest arguments]. Ends on "e2e: N passed, N failed, N skipped".
# BL_MODEL=PATH runs the server's tests on a real model too; DARKBLOOM=PATH tests another build.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${DARKBLOOM:-build/darkbloom}
[ -x "$program" ] || { echo "tests/e2e/run.sh: $program is not here: run make first" >&2; exit 1; }
venv=${E2E_VENV:-.venv}
stamp=$venv/e2e-requirements.txt
if ! cmp -s tests/e2e/requirements.txt "$stamp"; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/e2e/requirements.txt
    cp tests/e2e/requirements.txt "$stamp"
fi
if [ $# = 0 ]; then
    set -- tests/e2e
fi
DARKBLOOM=$(realpath "$program") exec "$venv/bin/python" -m pytest -q -p no:cacheprovider "$@"
