#!/usr/bin/env bash
# Create the virtual environment and install the suite into it.  Usage: setup_venv.sh PYTHON VENV [TORCH_INDEX [ROLE]]
# ROLE: of a cluster's machine, "gpu" (without what only development needs) or "cpu" (without torch, too: servers and
# agents do without).  pip's own variables count: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER installs from a folder of wheels.
set -euo pipefail
python=$1 venv=$2 torch_index=${3:-} role=${4:-all}
torch=torch==2.13.0

fail() { echo "setup: $*" >&2; exit 1; }

case $role in
  all) what='.[suite,dev]' ;;
  gpu) what='.[suite]' ;;
  cpu) what=. ;;
  *) fail "role is '$role'; use gpu or cpu, or leave it out" ;;
esac
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "needs Python 3.11 or later as '$python'; name another with: make PYTHON=/path/to/python3.11 ..."
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  rm -rf "$venv"
  if ! "$python" -m venv "$venv" 2>/dev/null; then
    rm -rf "$venv"
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
      fail "'$python -m venv' does not work here; on Debian install it with: sudo apt-get install python3-venv"
    echo "setup: installing python3-venv"
    { apt-get update -q && apt-get install -qy python3-venv; } >/dev/null || fail "apt-get could not install python3-venv"
    "$python" -m venv "$venv"
  fi
fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
if [ "$role" != cpu ] &&
  ! "$venv/bin/python" -c 'import importlib.metadata as m; assert m.version("torch").split("+")[0] == "2.13.0"' 2>/dev/null; then
  echo "setup: installing $torch (the largest part; a minute or more)"
  "${pip[@]}" install -q ${torch_index:+--index-url "$torch_index"} "$torch"
fi
echo "setup: installing the suite and its tools"
"${pip[@]}" install -q -e "$what"
