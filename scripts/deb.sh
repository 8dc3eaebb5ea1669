#!/usr/bin/env bash
# deb.sh - Debian packages of the tree, into BUILD_DIR/deb:  scripts/deb.sh BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
for tool in dpkg-buildpackage dh; do
    command -v "$tool" >/dev/null || { echo "deb     missing $tool; run: apt-get install -y debhelper" >&2; exit 1; }
done
version=$(sed -n '1s/^[^(]*(\([^)]*\)).*/\1/p' deploy/debian/changelog)
wanted=$(sed -n 's/^project(penstock VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[ "$version" = "$wanted" ] || { echo "deb     deploy/debian/changelog has version $version, CMakeLists.txt has $wanted" >&2; exit 1; }
tree=$build/deb/penstock-$version
rm -rf "$build/deb"
mkdir -p "$tree"
# The packages contain neither tests nor built examples.
git ls-files -co --exclude-standard | grep -vE '^(tests/|examples/CMakeLists.txt$)' | while read -r file; do [ ! -e "$file" ] || echo "$file"; done |
    tar -cf - -T - | tar -xf - -C "$tree"
cp -r deploy/debian "$tree/debian"
rm "$tree/debian/README.md"
if [ -n "${DEBEMAIL:-}" ]; then # names the distributor as the maintainer
    sed -i "s/^\(Maintainer:\| --\) [^<]*<[^>]*>/\1 ${DEBFULLNAME:-$DEBEMAIL} <$DEBEMAIL>/" "$tree/debian/control" "$tree/debian/changelog"
fi
(cd "$tree" && dpkg-buildpackage -b -us -uc) >"$build/deb/build.log" 2>&1 ||
    { tail -40 "$build/deb/build.log"; echo "deb     failed; see $build/deb/build.log"; exit 1; }
rm -rf "$tree"
ls "$build"/deb/*.deb | sed 's/^/deb     /'
