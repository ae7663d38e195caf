# `make demo` and `make test` work on a bare Debian 12 machine, as root or as a user with sudo: they install what they
# need (scripts/bootstrap.sh). Everything lands in .venv and .pkforge; `make clean` removes both.

# The interpreter .venv is made from: the system's, so that it depends on no version manager in somebody's home directory,
# which the sandbox would have to show to untrusted programs.
PYTHON ?= /usr/bin/python3
export PYTHON

# What `make demo` optimizes with: the built-in tuner, or any litellm model, e.g. make demo POLICY=llm:openai/gpt-5
POLICY ?= tuner

# More for the commands, e.g. make test ARGS="-k simulator", make serve ARGS="--port 9000"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo serve test mutation attacks gpu-test gpu-bench lint format lock clean server-env dev-env

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

demo: server-env ## optimize GEMM + reduce-scatter on simulated H200s, watch it, keep the kernel (POLICY=llm:MODEL)
	.venv/bin/pkforge demo --policy "$(POLICY)" $(ARGS)

serve: server-env ## run the service and its page on this machine until Ctrl-C
	.venv/bin/pkforge serve $(ARGS)

test: dev-env ## run every test: the fast ones in parallel, then the slow ones
	scripts/test.sh $(ARGS)

mutation: dev-env ## break the shipped kernels and the GPU headers in one place at a time: the simulator must notice each
	.venv/bin/python -m benchmarks.mutation $(ARGS)
	.venv/bin/python -m benchmarks.mutation.runtime $(ARGS)

attacks: dev-env ## judge every cheating and every honest candidate of the suite: nothing may be missed, nobody refused
	.venv/bin/python -m benchmarks.attacks $(ARGS)

gpu-test: ## run the tests that need 2 or 4 Hopper GPUs, in under 8 minutes, with the python3 on PATH (torch, numpy, pytest, nvcc)
	NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 \
	  python3 -m pytest -c tests/gpu/node.ini --rootdir=. --confcutdir=. tests/gpu -q -p no:cacheprovider $(ARGS)

gpu-bench: ## measure our kernels beside NCCL and other peers on 2 to 8 GPUs, in under 8 minutes (writes gpu-bench.json)
	python3 -m benchmarks.gpu $(ARGS)

lint: dev-env ## check style, types, layers and scripts; changes nothing
	scripts/lint.sh

format: dev-env ## rewrite the Python files in the house style
	.venv/bin/ruff check --fix-only --quiet .
	.venv/bin/ruff format .

lock: dev-env ## pin the dependencies anew after a change in pyproject.toml (ARGS=--upgrade for newer ones)
	scripts/lock.sh $(ARGS)

clean: ## remove the environment, caches and everything the service stored here
	rm -rf .venv .pkforge .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

server-env:
	@scripts/bootstrap.sh server

dev-env:
	@scripts/bootstrap.sh dev
