#!/usr/bin/env bash
# Install gRPC, ZeroMQ and UCX, all as wheels, into an environment of their own.  Usage: install_transports.sh ENVIRONMENT
# PYTHON (default: python3) makes the environment.  UCX's library is taken without its Python bindings, which need CUDA's
# packages; where it has no wheel or does not start, the others are installed all the same.
set -euo pipefail
[ $# = 1 ] || { echo "usage: install_transports.sh ENVIRONMENT" >&2; exit 2; }
environment=$1
python=${PYTHON:-python3}
packages=(grpcio==1.85.3 pyzmq==27.3.0 numpy==2.4.6)
ucx=libucx-cu12==1.22.0

fail() { echo "transports: $*" >&2; exit 1; }

installed() {
  "$environment/bin/python" - "$@" <<'PYTHON' 2>/dev/null
import importlib.metadata, sys
for name, version in (package.split("==") for package in sys.argv[1:]):
    assert importlib.metadata.version(name) == version
PYTHON
}

installed "${packages[@]}" "$ucx" && exit 0

"$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "needs Python 3.11 or later as '$python'; name another with: make transports PYTHON=/path/to/python3.11"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'rm -rf "$environment"; exit 130' INT TERM
pip() { "$environment/bin/python" -m pip --disable-pip-version-check install -q --only-binary :all: "$@"; }

if ! installed "${packages[@]}"; then
  echo "transports: installing ${packages[*]} into $environment (30 MB, seconds)"
  rm -rf "$environment"
  mkdir -p "$(dirname "$environment")"
  { "$python" -m venv "$environment" && pip "${packages[@]}"; } >"$log" 2>&1 || {
    rm -rf "$environment"
    fail "installing ${packages[*]} with '$python' failed: $(grep -v '^WARNING' "$log" | tail -n 5)"
  }
  "$environment/bin/python" -c 'import grpc, zmq; zmq.Context().term()' >"$log" 2>&1 || {
    rm -rf "$environment"
    fail "installed, but it does not start on this machine: $(tail -n 3 "$log")"
  }
fi
echo "transports: installing $ucx (43 MB)"
{ pip --no-deps "$ucx" && "$environment/bin/python" -c 'import libucx; assert libucx.load_library()[-1]'; } >"$log" 2>&1 || {
  "$environment/bin/python" -m pip uninstall -qy "${ucx%%==*}" >/dev/null 2>&1 || true
  echo "transports: without UCX: $(grep -v '^WARNING' "$log" | tail -n 3)" >&2
}
