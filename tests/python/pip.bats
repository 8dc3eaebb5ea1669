# pip.bats - the wheel: it carries the library, so the package works where nothing else of Penstock is.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

@test "pip installs a wheel with the library into a virtual environment, where a program trains" {
    cp -r "$root/python" "$tmp/python" # pip builds in the folder
    export LIBPENSTOCK_DIR=$build/lib
    cd "$tmp"
    unset PYTHONPATH LD_LIBRARY_PATH
    /usr/bin/python3 -m venv --system-site-packages venv # NumPy and setuptools are Debian's
    venv/bin/pip install --no-index --no-build-isolation --no-deps ./python
    ls venv/lib/python3*/site-packages/penstock/lib/libpenstock.so.1
    unset LIBPENSTOCK_DIR
    venv/bin/python "$root/examples/python/linear.py" >out
    tail -n 1 out | grep -qE '^step 19   loss 0\.[0-9]+$'
    [ "$(venv/bin/python -c 'import penstock; print(penstock.__file__)')" = "$(echo "$tmp"/venv/lib/python3*/site-packages/penstock/__init__.py)" ]
}

@test "without a built library pip says what to do" {
    cp -r "$root/python" "$tmp/python"
    cd "$tmp"
    run env -u PKG_CONFIG_PATH -u LD_LIBRARY_PATH PKG_CONFIG_LIBDIR=/nonexistent /usr/bin/python3 -m pip wheel --no-index --no-build-isolation --no-deps ./python
    [ "$status" != 0 ]
    [[ $output == *"libpenstock.so.1 is in none of"*"run \`make\` first"* ]]
}
