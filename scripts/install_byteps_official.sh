#!/usr/bin/env bash
# Install the official BytePS 0.2.5 (PyTorch) into an environment of its own.  Usage: install_byteps_official.sh ENVIRONMENT
# Optional, and only where `peers` of the cluster file asks for it; no experiment depends on it.  It is built from its
# released source, unedited, which needs CUDA and NCCL, and does not build against today's torch: so it gets torch 1.13.
# PYTHON (default: python3) makes the environment; CUDA_HOME and BYTEPS_NCCL_HOME say where CUDA and NCCL are.
# Not yet tried on a machine with CUDA: what fails there is in the log that it names.
set -euo pipefail
[ $# = 1 ] || { echo "usage: install_byteps_official.sh ENVIRONMENT" >&2; exit 2; }
environment=$1
python=${PYTHON:-python3}
byteps=byteps==0.2.5.post15
packages=(torch==1.13.1 numpy==1.26.4 cloudpickle==3.1.3 setuptools==65.7.0 wheel==0.48.0)
log=${XDG_CACHE_HOME:-$HOME/.cache}/byteps-reproduction/byteps-official-install.log

fail() { echo "byteps-official: $*" >&2; exit 1; }

pins="$byteps ${packages[*]}"
[ "$(cat "$environment/.installed" 2>/dev/null)" = "$pins" ] && exit 0

cuda=${CUDA_HOME:-/usr/local/cuda}
PATH=$cuda/bin:$PATH
command -v nvcc >/dev/null ||
  fail "needs CUDA's compiler: no nvcc in PATH or $cuda/bin; install the CUDA toolkit and set CUDA_HOME, or take byteps-official out of install.peers"
nccl=
for place in "${BYTEPS_NCCL_HOME:-}" "$cuda" /usr /usr/local /usr/local/nccl; do
  [ -n "$place" ] && [ -e "$place/include/nccl.h" ] && { nccl=$place; break; }
done
[ -n "$nccl" ] ||
  fail "needs NCCL's headers: no include/nccl.h in $cuda, /usr or /usr/local; install libnccl-dev, or set BYTEPS_NCCL_HOME, or take byteps-official out of install.peers"
command -v g++ >/dev/null || fail "needs g++; on Debian install it with: sudo apt-get install g++ make"
"$python" -c 'import sys; sys.exit(not (3, 7) <= sys.version_info[:2] <= (3, 11))' 2>/dev/null ||
  fail "needs Python 3.7 to 3.11 (torch 1.13 has no wheels for later ones) as '$python'; set install.python"

mkdir -p "$(dirname "$log")" "$(dirname "$environment")"
rm -rf "$environment"
echo "byteps-official: building $byteps with CUDA in $cuda and NCCL in $nccl (several minutes), log $log"
{ "$python" -m venv "$environment" &&
  "$environment/bin/python" -m pip --disable-pip-version-check --no-input install -q "${packages[@]}" &&
  env BYTEPS_NCCL_HOME="$nccl" BYTEPS_CUDA_HOME="$cuda" BYTEPS_WITHOUT_TENSORFLOW=1 BYTEPS_WITHOUT_MXNET=1 \
    BYTEPS_WITH_PYTORCH=1 BYTEPS_USE_RDMA=0 "$environment/bin/python" -m pip --disable-pip-version-check --no-input \
    install --no-cache-dir --no-build-isolation --no-binary byteps "$byteps" &&
  "$environment/bin/python" -c 'import byteps.torch'; } >"$log" 2>&1 || {
  rm -rf "$environment"
  fail "failed; $log ends with: $(tail -n 5 "$log" | cut -c1-300)"
}
echo "$pins" >"$environment/.installed"
echo "byteps-official: ready in $environment"
