#!/usr/bin/env bash
# Install TensorFlow (CPU) into an environment of its own.  Usage: install_tensorflow.sh ENVIRONMENT
# PYTHON (default: python3) makes the environment.
set -euo pipefail
[ $# = 1 ] || { echo "usage: install_tensorflow.sh ENVIRONMENT" >&2; exit 2; }
environment=$1
python=${PYTHON:-python3}
# Below the first line: what TensorFlow's requirements resolve to.
packages=(
  tensorflow-cpu==2.21.0 numpy==2.4.6
  absl-py==2.5.1 astunparse==1.6.3 certifi==2026.10.19.post1 charset-normalizer==3.5.3 flatbuffers==25.12.19
  gast==0.7.0 google-pasta==0.2.0 grpcio==1.85.3 h5py==3.14.0 idna==3.20 keras==3.15.1 libclang==18.1.1
  markdown-it-py==4.3.0 mdurl==0.1.2 ml_dtypes==0.6.0 namex==0.1.0 opt_einsum==3.4.0 optree==0.20.0 packaging==26.4
  protobuf==7.36.2 Pygments==2.21.0 requests==2.34.2 rich==15.0.0 six==1.17.0 termcolor==3.3.0
  typing_extensions==4.16.0 urllib3==2.8.0 wrapt==2.5.2
)

fail() { echo "tensorflow: $*" >&2; exit 1; }

installed() {
  "$environment/bin/python" - "${packages[@]}" <<'PYTHON' 2>/dev/null
import importlib.metadata, sys
for name, version in (package.split("==") for package in sys.argv[1:]):
    assert importlib.metadata.version(name) == version
PYTHON
}

installed && exit 0

"$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "needs Python 3.11 or later as '$python'; name another with: make tensorflow PYTHON=/path/to/python3.11"
temporary=$(mktemp -d)
log=$temporary/log
running=
trap 'rm -rf "$temporary"' EXIT
trap '[ -z "$running" ] || kill "$running" 2>/dev/null || true; rm -rf "$environment"; exit 130' INT TERM
rm -rf "$environment"
mkdir -p "$(dirname "$environment")"
started=$SECONDS
echo "tensorflow: installing ${packages[0]} into $environment (1.6 GB on disk, a minute or more)"
"$python" -m venv "$environment" >"$log" 2>&1 ||
  fail "'$python -m venv' does not work here; on Debian install it with: sudo apt-get install python3-venv"
"$environment/bin/python" -m pip --disable-pip-version-check --no-input install -q --only-binary :all: \
  "${packages[@]}" >"$log" 2>&1 &
running=$!
while sleep 1 && kill -0 "$running" 2>/dev/null; do
  (((SECONDS - started) % 15)) || echo "tensorflow: installing: $((SECONDS - started)) s"
done
wait "$running" || {
  rm -rf "$environment"
  fail "installing ${packages[0]} with '$python' failed: $(grep -v '^WARNING' "$log" | tail -n 5)"
}
running=
TF_CPP_MIN_LOG_LEVEL=2 "$environment/bin/python" -c 'import tensorflow; tensorflow.constant(1).numpy()' >"$log" 2>&1 || {
  rm -rf "$environment"
  fail "installed, but it does not start on this machine: $(tail -n 3 "$log")"
}
