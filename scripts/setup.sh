#!/usr/bin/env bash
# setup.sh - installs the missing Debian packages of packages.txt:  scripts/setup.sh [MORE_FILES]
#   DRY_RUN=1     prints the command and stops
#   ASSUME_YES=1  installs without asking
set -euo pipefail
cd "$(dirname "$0")/.."

here=$(dpkg --print-architecture 2>/dev/null || :)
wanted=$(sed -s "s/#.*//; s/ \[$here\]//; /\[/d" packages.txt "$@")
if ! command -v dpkg-query >/dev/null; then
    echo "setup   this is not Debian: install these libraries yourself, then run make SETUP=no:" >&2
    echo "          $(echo $wanted)" >&2
    exit 1
fi

# A package also counts as installed if another one provides it: a nodejs from elsewhere may include npm.
have=$(dpkg-query -W -f '${db:Status-Status} ${Package}, ${Provides}\n' | sed -n 's/^installed //p' | sed 's/([^)]*)//g; s/, */\n/g' | tr -d ' ')
missing=""
for package in $wanted; do
    grep -qxF "$package" <<<"$have" || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "setup   nothing to install"
    exit 0
fi

count=$(echo $missing | wc -w)
echo "setup   missing $count Debian packages:"
echo $missing | fold -s -w 90 | sed 's/^/          /'

sudo=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup   cannot install without root or sudo; as root:  apt-get install$missing" >&2
        exit 1
    fi
    sudo="sudo"
fi
install="$sudo apt-get install -y --no-install-recommends$missing"
if [ "${DRY_RUN:-}" = 1 ]; then
    echo "$install"
    exit 0
fi
if [ -t 0 ] && [ -t 1 ] && [ "${ASSUME_YES:-}" != 1 ]; then
    read -r -p "        install them with ${sudo:+$sudo }apt-get?  [Y/n]  " answer
    case "$answer" in [nN]*) echo "setup   stopped: nothing was installed" >&2; exit 1 ;; esac
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS
export DEBIAN_FRONTEND=noninteractive
if ! { $install || { $sudo apt-get update && $install; }; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "setup   apt-get failed; the packages it could not install are among:$missing" >&2
    exit 1
fi
echo "setup   done in $((SECONDS - started)) s"
