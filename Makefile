# Penstock: the commands people type.  CMakeLists.txt has the build itself.
#   make            builds into build/
#   make demo       installs missing packages, builds, trains Fashion-MNIST with 2 servers and 2 workers
#   make python     installs missing packages and PyTorch, builds, installs penstock and its Python package below PREFIX
#   make test       installs missing packages, builds, runs every test that needs no GPU
#   make python-test  installs PyTorch (packages-python.txt), builds, runs the tests of penstock.torch
#   make gpu-test   on a machine with an NVIDIA GPU: builds, runs the tests of tests/gpu
#   make fleet      containers, Kubernetes, Slurm, Prometheus, a browser: installs packages-fleet.txt and runs tests/fleet
#   make check      the quick tests only (under a minute, once built)
#   make sanitize   builds with address and undefined, then with thread sanitizer, and runs the tests that support them;
#                   each fuzzer for 10 s
#   make soak       SEEDS=5000: simulated clusters with faults, on all cores, and of 1,000 workers; ROUNDS=20: runs of the hosts suite; faults over TLS;
#                   each allocation of a job's processes, failed in turn; 300 kills at one port, 600 under every rule
#   make bench      the figures of the README
#   make install    PREFIX=/usr/local
#   make deb        Debian packages into build/deb (needs debhelper)
#   make setup      installs the Debian packages of packages.txt (DRY_RUN=1 shows the command)
#   make docs       regenerates the generated pages of docs/
#   make format     formats the C sources with the pinned clang-format
BUILD    ?= build
PREFIX   ?= /usr/local
SANITIZE ?=
CUDA     ?= AUTO
WERROR   ?= OFF
SETUP    ?= yes
JOBS     ?= $(shell nproc)
SEEDS    ?= 5000
ROUNDS   ?= 20
# Ninja, for a new build folder, where it is installed: a tenth of the time less.
GENERATOR = $(if $(wildcard $(BUILD)/CMakeCache.txt),,$(if $(shell command -v ninja),-G Ninja))

.PHONY: all configure setup setup-python build demo python test python-test gpu-test fleet check sanitize soak bench install deb docs format clean

all: build

configure:
	@cmake $(GENERATOR) -S . -B $(BUILD) -DPENSTOCK_SANITIZE=$(SANITIZE) -DPENSTOCK_CUDA=$(CUDA) -DPENSTOCK_WERROR=$(WERROR) \
	    -DCMAKE_INSTALL_PREFIX=$(PREFIX) > $(BUILD).configure.log 2>&1 || { cat $(BUILD).configure.log; rm -f $(BUILD).configure.log; exit 1; }
	@mv $(BUILD).configure.log $(BUILD)/configure.log

build: configure
	@started=$$(date +%s); cmake --build $(BUILD) -j$(JOBS) > $(BUILD)/build.log 2>&1 || { grep -E -A6 'error|Error|undefined' $(BUILD)/build.log | head -60; echo "build   failed; see $(BUILD)/build.log"; exit 1; }; \
	grep -E 'warning:' $(BUILD)/build.log || true; \
	echo "build   $$(sed -n 's/^-- penstock: //p' $(BUILD)/configure.log)   done in $$(( $$(date +%s) - started )) s"

setup:
ifeq ($(SETUP),yes)
	@scripts/setup.sh
endif

demo: setup
	@$(MAKE) --no-print-directory build
	@scripts/demo.sh $(BUILD)

setup-python:
ifeq ($(SETUP),yes)
	@scripts/setup.sh packages-python.txt
endif

python: setup-python
	@$(MAKE) --no-print-directory build
	@scripts/install.sh $(BUILD) $(PREFIX)

test: setup
	@$(MAKE) --no-print-directory build
	@tests/run.sh $(BUILD) all

gpu-test:
	@$(MAKE) --no-print-directory build
	@tests/run.sh $(BUILD) gpu

python-test: setup-python
	@$(MAKE) --no-print-directory build
	@tests/run.sh $(BUILD) python

fleet: setup
ifeq ($(SETUP),yes)
	@scripts/setup.sh packages-fleet.txt
endif
	@$(MAKE) --no-print-directory build
	@tests/run.sh $(BUILD) fleet

check:
	@$(MAKE) --no-print-directory build
	@tests/run.sh $(BUILD) check

sanitize: setup
	@$(MAKE) --no-print-directory build BUILD=$(BUILD)-asan SANITIZE=address,undefined
	@tests/run.sh $(BUILD)-asan sanitize
	@$(MAKE) --no-print-directory build BUILD=$(BUILD)-tsan SANITIZE=thread
	@tests/run.sh $(BUILD)-tsan sanitize

soak: setup
	@$(MAKE) --no-print-directory build
	@tests/sim/soak.sh $(BUILD) $(SEEDS)
	@tests/cluster/hosts_soak.sh $(BUILD) $(ROUNDS)
	@tests/cluster/tls_soak.sh $(BUILD)
	@BUILD=$(BUILD) EVERY=1 bats tests/cluster/memory.bats
	@BUILD=$(BUILD) KILLS=100 bats tests/cluster/local.bats -f 'killed, again and again'
	@BUILD=$(BUILD) SHAKES=10 SEED=$$(date +%s) bats tests/cluster/restarts.bats -f 'random kills'

bench: setup
	@$(MAKE) --no-print-directory build
	@scripts/bench.sh $(BUILD)

install: build
	@cmake --install $(BUILD)

deb:
	@scripts/deb.sh $(BUILD)

docs: build
	@scripts/docs.sh $(BUILD)

format:
	@git ls-files '*.c' '*.h' '*.inc' | grep -v -e golden_ | xargs clang-format-14 -i

clean:
	@rm -rf $(BUILD)
