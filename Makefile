# `make reproduce` and `make test` do all the set-up there is; everything is quick when it is there already.
.DEFAULT_GOAL := help
SHELL := /bin/bash
TIER ?= reproduce
# PYTHON makes the virtual environment; TORCH_INDEX names another package index for torch (such as one with CPU builds only).
PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

PEERS := horovod mxnet tensorflow mpi
# CLUSTER=my.toml: on the hosts of that file (docs/cluster.md).
CLUSTER ?=
FAB = $(VENV)/bin/fab -r scripts
CLUSTER_TASKS := preflight provision deploy fetch stop

.PHONY: help setup tools peers $(PEERS) transports $(CLUSTER_TASKS) clean-cluster reproduce smoke sweep figures report bench test lint size clean sshd

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  \1\t/' | expand -t 16
	@echo
	@echo "  TIER=smoke|reproduce|paper   how much to run (default: reproduce)"
	@echo "  CLUSTER=my.toml              with reproduce, too: on the hosts of that file, see docs/cluster.md"
	@echo "  TORCH_INDEX=URL              another package index for torch"

$(STAMP): pyproject.toml scripts/setup_venv.sh
	@scripts/setup_venv.sh "$(PYTHON)" "$(VENV)" "$(TORCH_INDEX)"
	@touch $@

setup: $(STAMP)  ## create .venv and install what is missing

tools: $(STAMP)
	@scripts/setup_tools.sh

$(PEERS) transports: %: tools
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" scripts/install_$@.sh .peers/$@

horovod:  ## install Horovod 0.28.1 into .peers/horovod (built once, minutes; the wheel is cached)
mxnet:  ## install MXNet 1.9.1 into .peers/mxnet
tensorflow:  ## install TensorFlow into .peers/tensorflow
mpi:  ## install Open MPI and mpi4py into .peers/mpi
transports:  ## install gRPC, ZeroMQ and UCX into .peers/transports

sshd: tools  ## install openssh-server, for the emulated cluster whose hosts are reached by ssh
	@scripts/install_sshd.sh

peers: tools  ## install all peers; one that cannot be installed is named and left out
	@for peer in $(PEERS); do $(MAKE) --no-print-directory $$peer || \
	  echo "peers: $$peer is not installed, for the reason above; figures and tables will say so where it belongs"; done

ifneq ($(CLUSTER),)
reproduce: $(STAMP)
	$(FAB) reproduce --cluster "$(CLUSTER)" --tier $(TIER)
else
reproduce: peers  ## run all experiments that are missing, draw the figures, write the report (about an hour)
	$(RUN) -m experiments reproduce --tier $(TIER)
endif

preflight:  ## CLUSTER=my.toml: look at its hosts: login, Python, disk, clocks, interfaces, ports, link rates, GPUs
provision:  ## CLUSTER=my.toml: send the suite to its hosts, install what is missing there
deploy:  ## CLUSTER=my.toml: send the suite's files alone
fetch:  ## CLUSTER=my.toml: bring records and logs here
stop:  ## CLUSTER=my.toml: end what runs on its hosts
$(CLUSTER_TASKS): $(STAMP)
	@$(FAB) $@ --cluster "$(CLUSTER)"

clean-cluster: $(STAMP)  ## CLUSTER=my.toml: fetch, then remove everything of the suite from its hosts
	@$(FAB) clean --all --cluster "$(CLUSTER)"

smoke: tools  ## small runs of Figures 4, 9b and 12 and of the benchmarks, with the peers that are installed (under 5 minutes)
	$(RUN) -m experiments reproduce --tier smoke --results results/smoke

sweep: peers  ## tune every contender's knobs anew, then what is too long for `reproduce`: more rates, scales, defaults
	$(RUN) -m experiments tune
	$(RUN) -m experiments reproduce --tier sweep

figures: $(STAMP)  ## redraw the figures from the records, without running anything
	$(RUN) -m experiments figures

report: figures  ## redraw the figures, then rewrite results/REPORT.md and results/report.html
	$(RUN) -m experiments report

bench: tools  ## BytePS against bounds and peers on this machine: loopback, small tensors, training, knee, footprint
	$(RUN) -m experiments bench

test: tools  ## all tests; those that need root, namespaces or a GPU skip with a reason elsewhere (about 20 minutes)
	@status=0; \
	$(RUN) -m pytest -n auto --maxprocesses 8 tests/unit || status=$$?; \
	$(RUN) -m pytest tests/loop tests/lab tests/gpu || status=$$?; \
	exit $$status  # jobs and emulated clusters need the machine to themselves, so these are one after the other

lint: $(STAMP)  ## ruff, mypy (strict on the pure layers), import-linter
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache  # its cache misses modules that are new

size:  ## lines of code per part, without blank lines, comments and docstrings
	@$(PYTHON) scripts/size.py byteps baselines experiments scripts tests

clean:  ## remove the virtual environments, caches and new results (not results/reference)
	rm -rf $(VENV) .peers build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache results/raw results/figures results/smoke results/REPORT.md results/report.html results/cluster
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
