#!/usr/bin/env bash
# Install MXNet 1.9.1 into an environment of its own.  Usage: install_mxnet.sh ENVIRONMENT
# PYTHON (default: python3) makes the environment.  numpy is old because MXNet reads np.bool, which 1.24 removed; Python
# therefore too, since numpy 1.23 has wheels up to 3.11 only.  The suite's driver needs 3.10.
set -euo pipefail
environment=$1
python=${PYTHON:-python3}
packages=(mxnet==1.9.1 numpy==1.23.5 requests==2.32.5 graphviz==0.8.4)  # MXNet needs the last two to be imported

fail() { echo "mxnet: $*" >&2; exit 1; }

installed() {
  "$environment/bin/python" - "${packages[@]}" <<'PYTHON' 2>/dev/null
import importlib.metadata, sys
for name, version in (package.split("==") for package in sys.argv[1:]):
    assert importlib.metadata.version(name) == version
PYTHON
}

installed && exit 0

fits='import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 11))'
if ! "$python" -c "$fits" 2>/dev/null; then
  found=
  for other in python3.11 python3.10; do
    if "$other" -c "$fits" 2>/dev/null; then found=$other; break; fi
  done
  [ -n "$found" ] || fail "needs Python 3.10 or 3.11 (numpy $(echo "${packages[1]}" | cut -d= -f3) has no wheels for" \
    "later ones), '$python' is $("$python" -V 2>&1 || true); name one with: make mxnet PYTHON=/path/to/python3.11"
  python=$found
fi

echo "mxnet: installing ${packages[0]} into $environment (300 MB, 10 s to a minute)"
rm -rf "$environment"
mkdir -p "$(dirname "$environment")"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ "$python" -m venv "$environment" && "$environment/bin/python" -m pip --disable-pip-version-check install -q \
  --only-binary :all: "${packages[@]}"; } >"$log" 2>&1 || {
  rm -rf "$environment"
  fail "installing ${packages[*]} with '$python' failed: $(grep -v '^WARNING' "$log" | tail -n 5)"
}
"$environment/bin/python" -c 'import mxnet; mxnet.nd.ones(1).asnumpy()' >"$log" 2>&1 || {
  rm -rf "$environment"
  fail "installed, but it does not start on this machine: $(tail -n 3 "$log")"
}
