#!/usr/bin/env bash
# The system's part of the emulated cluster: ip and tc (iproute2), nsenter and unshare (util-linux).
set -euo pipefail
missing=()
for tool in ip:iproute2 tc:iproute2 nsenter:util-linux unshare:util-linux; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
done
[ ${#missing[@]} = 0 ] && exit 0
packages=$(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "setup: installing $packages"
  { apt-get update -q && apt-get install -qy $packages; } >/dev/null
else
  echo "setup: the emulated cluster needs $packages; install them with: sudo apt-get install $packages" >&2
  echo "setup: what does not need them goes on" >&2
fi
