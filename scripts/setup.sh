#!/usr/bin/env bash
# Installs the Debian packages of scripts/packages.txt that are missing. Needs root or sudo only when something is.
#   usage: scripts/setup.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

mapfile -t wanted < <(grep -v '^#' "$here/packages.txt")
installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' 2>/dev/null | awk '/^ii/ {print $2}' | sort -u)
missing=$(comm -23 <(printf '%s\n' "${wanted[@]}" | sort -u) <(printf '%s\n' "$installed"))
[ -n "$missing" ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "setup: missing packages, and neither root nor sudo: $(echo $missing)" >&2; exit 1; }
  as_root=(sudo)
fi
echo "setup: installing $(echo $missing)"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
# shellcheck disable=SC2086  # a list of names
"${as_root[@]}" apt-get install -y -qq --no-install-recommends $missing >/dev/null
