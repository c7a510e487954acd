#!/usr/bin/env bash
# sshd for the emulated cluster that is reached by ssh (scripts/sshlab.py).  The lab starts its own, with its own configuration.
set -euo pipefail
[ -x /usr/sbin/sshd ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "sshd: installing openssh-server"
  { apt-get update -q && apt-get install -qy --no-install-recommends openssh-server; } >/dev/null
else
  echo "sshd: install it with: sudo apt-get install openssh-server" >&2
  exit 1
fi
