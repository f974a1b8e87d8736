#!/usr/bin/env bash
# Usage: bash .ci/wheelhouse.sh 3.12 wheelhouse [EXTRAS [MACHINE]]
# Collects the wheels of memscale and all that it needs, in the versions of constraints.txt, for a Linux machine of that
# Python that has no network; and beside them install.sh, which installs from them there:
#     bash wheelhouse/install.sh .venv
# EXTRAS (default: all) are those of pyproject.toml; MACHINE (default: this one's) is x86_64 or aarch64.
set -euo pipefail
version=${1:?usage: bash .ci/wheelhouse.sh 3.12 FOLDER}
folder=${2:?usage: bash .ci/wheelhouse.sh 3.12 FOLDER}
extras=${3:-all}
machine=${4:-$(uname -m)}

say() { printf 'wheelhouse: %s\n' "$*"; }
fail() { printf 'wheelhouse: %s\n' "$*" >&2; exit 1; }

case $version in
    3.11 | 3.12 | 3.13) ;;
    *) version=$("$version" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) \
        || fail "needs a version of Python, got '$1'; run: make wheelhouse PYTHON=3.12" ;;
esac
case $version in 3.11 | 3.12 | 3.13) ;; *) fail "memscale runs on Python 3.11, 3.12 and 3.13, got $version" ;; esac

mkdir -p "$folder"
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
# A pip of its own, of any Python: what is collected is for another one.
builder=
for candidate in "python$version" python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then builder=$candidate; break; fi
done
[ -n "$builder" ] || fail "needs some Python 3.11 or later with venv here; on Debian and Ubuntu: apt-get install python3-venv"
"$builder" -m venv "$tools/venv"
pip() { "$tools/venv/bin/python" -m pip --disable-pip-version-check "$@"; }

rm -f "$folder"/memscale-*.whl
say "building memscale"
pip wheel --quiet --no-deps --wheel-dir "$folder" .
wheel=$(ls "$folder"/memscale-*.whl)

# pip does not know that a system which takes manylinux_2_28 takes older ones too. glibc 2.28: Debian 10, Ubuntu 20.04, RHEL 8.
platforms=()
for minor in $(seq 28 -1 17); do platforms+=(--platform "manylinux_2_${minor}_$machine"); done
platforms+=(--platform "manylinux2014_$machine")
if [ "$machine" = x86_64 ]; then
    for old in manylinux_2_12 manylinux2010 manylinux_2_5 manylinux1; do platforms+=(--platform "${old}_x86_64"); done
fi
platforms+=(--platform "linux_$machine")

say "collecting wheels of memscale[$extras] for Python $version on Linux $machine"
pip download --quiet --dest "$folder" --only-binary=:all: --implementation cp --python-version "$version" \
    "${platforms[@]}" --constraint constraints.txt "$wheel[$extras]"
cp constraints.txt "$folder/constraints.txt"

cat > "$folder/install.sh" <<INSTALL
#!/usr/bin/env bash
# Usage: bash install.sh .venv
# Makes a virtual environment and installs memscale[$extras] into it from the wheels beside this file. No network is used.
set -euo pipefail
venv=\${1:?usage: bash install.sh FOLDER}
here=\$(cd "\$(dirname "\${BASH_SOURCE[0]}")" && pwd)
python=\${PYTHON:-python$version}
"\$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$version")' 2>/dev/null \\
    || { echo "install: these wheels are for Python $version; run: PYTHON=/path/to/python$version bash install.sh \$venv" >&2; exit 1; }
"\$python" -m venv "\$venv"
env -u PIP_FIND_LINKS "\$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "\$here" \\
    --constraint "\$here/constraints.txt" "memscale[$extras]"
echo "install: ready; the command is \$venv/bin/memscale"
INSTALL
say "$(ls "$folder"/*.whl | wc -l) wheels, $(du -sh "$folder" | cut -f1), in $folder; take the folder there and run: bash $(basename "$folder")/install.sh .venv"
