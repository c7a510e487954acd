#!/usr/bin/env bash
# Install Horovod (gloo, PyTorch, CPU) into a virtual environment of its own.  Usage: install_horovod.sh ENVIRONMENT_FOLDER
# HOROVOD_GPU_OPERATIONS=NCCL, on a machine with CUDA's compiler, builds it for GPUs, too.
# Horovod is built from its released source, unedited, once: the wheel is kept outside the clone and serves later ones.
# PYTHON makes the environment, TORCH_INDEX names another package index for torch.
set -euo pipefail
[ $# = 1 ] || { echo "usage: install_horovod.sh ENVIRONMENT_FOLDER" >&2; exit 2; }
environment=$1
python=${PYTHON:-python3}
torch_index=${TORCH_INDEX:-}
horovod=horovod==0.28.1
torch=torch==2.13.0
# What Horovod's own requirements resolve to, and what its setup.py needs to run without pip's build isolation.
packages=(numpy==2.4.6 cloudpickle==3.1.3 psutil==7.2.2 pyyaml==6.0.4 cffi==2.1.1 packaging==26.4 setuptools==80.9.0 wheel==0.48.0)
gpu=${HOROVOD_GPU_OPERATIONS:-}
pins="$horovod $torch ${packages[*]}${gpu:+ $gpu}"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/byteps-reproduction
log=$cache/horovod-install.log

fail() { echo "horovod: $*" >&2; exit 1; }

complete() {
  [ "$(cat "$environment/.installed" 2>/dev/null)" = "$pins" ] &&
    "$environment/bin/python" -c 'import importlib.metadata as m; m.version("horovod")' 2>/dev/null
}
complete && exit 0

running=
temporary=$(mktemp -d)
tidy() {
  [ -z "$running" ] || kill -- "-$running" 2>/dev/null || true
  rm -rf "$temporary"
}
trap tidy EXIT
trap 'exit 130' INT TERM

# A long command, its output in the log: a line when it begins, one every 15 seconds, and its errors if it fails.
step() {
  local what=$1 started=$SECONDS next=$((SECONDS + 15)) percent
  shift
  echo "horovod: $what"
  printf '\n== %s\n' "$what" >>"$log"
  local mark
  mark=$(wc -l <"$log")
  set -m # a process group of its own, so that an interrupt ends the compilers too
  "$@" >>"$log" 2>&1 &
  running=$!
  set +m
  while sleep 1 && kill -0 "$running" 2>/dev/null; do
    ((SECONDS < next)) && continue
    next=$((SECONDS + 15))
    percent=$(tail -n "+$mark" "$log" | grep -oE '^ *\[ *[0-9]+%\]' | tail -n 1 | tr -d ' []' || true)
    echo "horovod: $what: $((SECONDS - started)) s${percent:+, $percent}"
  done
  if ! wait "$running"; then
    running=
    { tail -n "+$mark" "$log" | grep -E '(^|[^-W])error:|CMake Error|ERROR:|Error: ' || tail -n 20 "$log"; } |
      head -n 20 | cut -c1-300 | sed 's/^/  /' >&2 || true
    fail "$what failed; the whole log is $log"
  fi
  running=
}

need_tools() {
  local missing=() wanted include
  for wanted in g++:g++ cmake:cmake make:make; do
    command -v "${wanted%%:*}" >/dev/null || missing+=("${wanted##*:}")
  done
  include=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [ -e "$include/Python.h" ] || missing+=(python3-dev)
  [ -z "$gpu" ] || command -v nvcc >/dev/null ||
    fail "HOROVOD_GPU_OPERATIONS=$gpu needs nvcc, CUDA's compiler, in PATH; install the CUDA toolkit, or unset it for CPU tensors"
  [ ${#missing[@]} = 0 ] && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    step "installing ${missing[*]} with apt-get" \
      sh -c 'apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"' sh "${missing[@]}"
  else
    fail "building it needs ${missing[*]}; on Debian install them with: sudo apt-get install ${missing[*]}"
  fi
}

# Horovod pins C++14 where torch's headers need C++20, and its own flag comes after CXXFLAGS.  g++ obeys the last -std, so
# the compiler is a wrapper that puts one behind everything.  The gloo inside it uses uint8_t without including cstdint.
# The wrapper also drops the path of this environment from the library: it is not needed, since torch is loaded first,
# and the wheel serves other environments.
build_wheel() {
  local jobs memory
  need_tools
  cat >"$temporary/c++" <<'END'
#!/bin/sh
for argument; do
  shift
  case $argument in -Wl,-rpath,*) ;; *) set -- "$@" "$argument" ;; esac
done
exec g++ "$@" -std=c++20 -include cstdint -g0
END
  chmod +x "$temporary/c++"
  jobs=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo) # a compiler takes up to 2 GiB
  ((memory >= jobs)) || jobs=$((memory > 0 ? memory : 1))
  # pip's own cache of built wheels does not know for which torch one was built.
  step "building the wheel with $jobs compilers at a time (3 to 12 minutes, once)" \
    env CXX="$temporary/c++" MAKEFLAGS="-j$jobs" PATH="$environment/bin:$PATH" \
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_CPU_OPERATIONS=GLOO \
    ${gpu:+"HOROVOD_GPU_OPERATIONS=$gpu"} \
    "${pip[@]}" wheel -v --no-cache-dir --no-deps --no-build-isolation --no-binary horovod -w "$temporary/wheel" "$horovod"
  mkdir -p "$wheels"
  cp "$temporary"/wheel/*.whl "$wheels/.$$"
  mv "$wheels/.$$" "$wheels/$(basename "$temporary"/wheel/*.whl)" # at once, whoever else is at it
}

mkdir -p "$cache" "$environment"
environment=$(cd "$environment" && pwd)
echo "$pins" >"$log"
if ! "$environment/bin/python" -m pip --version >/dev/null 2>&1; then
  rm -rf "$environment"
  "$python" -m venv "$environment" >>"$log" 2>&1 ||
    fail "'$python -m venv' does not work here; on Debian install it with: sudo apt-get install python3-venv"
fi
rm -f "$environment/.installed"
pip=("$environment/bin/python" -m pip --disable-pip-version-check --no-input)
step "installing $torch (the largest part; a minute or more)" \
  "${pip[@]}" install ${torch_index:+--index-url "$torch_index"} "$torch"
step "installing what it needs" "${pip[@]}" install "${packages[@]}"

# The wheel fits one version of torch and Python, one platform, and CPUs with the vector units it was compiled for.
key=$("$environment/bin/python" - <<'END'
import importlib.metadata, sys, sysconfig
print(f"torch-{importlib.metadata.version('torch')}-cp{sys.version_info[0]}{sys.version_info[1]}-{sysconfig.get_platform()}")
END
)
units=$(grep -m 1 ^flags /proc/cpuinfo | tr ' ' '\n' | grep -xE 'f16c|avx|fma' | sort | tr '\n' '-' || true)
wheels=$cache/${horovod/==/-}-$key-${units%-}${gpu:+-$gpu}
compgen -G "$wheels/*.whl" >/dev/null || build_wheel
step "installing the wheel" "${pip[@]}" install --no-deps --force-reinstall "$(compgen -G "$wheels/*.whl" | head -n 1)"
step "trying it" "$environment/bin/python" -c 'import horovod.torch as hvd; assert hvd.gloo_built()'"${gpu:+; assert hvd.nccl_built()}"
echo "$pins" >"$environment/.installed"
echo "horovod: ready in $environment"
