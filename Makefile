# kda.cpp: everything a person types. `make` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

BUILD ?= build/release
PRESET ?= release
CMAKE_ARGS ?=
VENV := .venv
PYTHON := $(VENV)/bin/python
KDA := $(BUILD)/bin/kda
# Two torch units at once need 3 GB; one job per 2 GB of memory, at most one per core.
JOBS ?= $(shell scripts/jobs.sh)

##@ First
.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z][a-z-]*:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo

.PHONY: setup
setup: ## install what is missing: Debian/Ubuntu packages, .venv with torch, SentencePiece
	scripts/setup.sh

.PHONY: quickstart
quickstart: program ## corpus, tokenizer, a small model trained on it, text out of it (about 12 minutes)
	scripts/quickstart.sh $(KDA)

.PHONY: test
test: build ## every check and test (no GPU needed)
	scripts/test.sh $(BUILD)

##@ Work
.PHONY: configure
configure: setup
	@mkdir -p $(BUILD)
	cmake --preset $(PRESET) $(CMAKE_ARGS) >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }

.PHONY: program
program: configure ## only the program build/release/bin/kda and the Python package's library
	cmake --build $(BUILD) --parallel $(JOBS) --target kda_program

.PHONY: build
build: configure ## everything: library, program, Python package's library, tests, benchmarks
	cmake --build $(BUILD) --parallel $(JOBS)

.PHONY: bench
bench: build ## benchmark tables of this machine (CPU operator, model)
	scripts/bench.sh $(BUILD)

.PHONY: test-monitor
test-monitor: setup ## tests of the exporters with TensorBoard, SwanLab and W&B, in build/monitor-venv
	scripts/test_monitor.sh

.PHONY: test-sanitize
test-sanitize: setup ## torch-free tests under AddressSanitizer and UBSan
	cmake --preset dev >/dev/null
	cmake --build build/dev --parallel $(JOBS)
	ctest --test-dir build/dev --output-on-failure --parallel $(JOBS)

# Their names end in _test; the conformance suite of the GPU has no cases without one.
CUDA_TESTS := cuda_tiling_test cuda_stage_model_test cuda_chunk_test cuda_stage_test

.PHONY: test-cuda
test-cuda: setup ## compile the CUDA code for sm_80 and sm_90a, run its tests (kernels: only where a GPU is)
	scripts/setup_cuda.sh
	@mkdir -p build/cuda
	cmake --preset release -B build/cuda -DKDA_CUDA=ON -DKDA_PYTHON_COPY=OFF $(CMAKE_ARGS) \
	  >build/cuda/configure.log 2>&1 || { cat build/cuda/configure.log; exit 1; }
	cmake --build build/cuda --parallel $(JOBS) --target kda_cuda kda_model_cuda cuda_conformance_test $(CUDA_TESTS)
	for test in $(CUDA_TESTS); do OMP_NUM_THREADS=1 build/cuda/bin/$$test --gtest_brief=1; done

.PHONY: coverage
coverage: setup ## line coverage of the torch-free layers, as text
	scripts/coverage.sh

.PHONY: fuzz
fuzz: setup ## fuzz the parsers, a minute for each (needs clang and libomp-dev)
	scripts/fuzz.sh

.PHONY: format
format: setup ## rewrite C++ and Python to the project's format
	scripts/format.sh

.PHONY: notes
notes: ## the mathematics as a PDF: build/notes/notes.pdf (needs latexmk)
	scripts/build_notes.sh build

##@ Ship
.PHONY: man
man: program ## manual page build/release/kda.1 from the help texts
	scripts/make_man.py $(KDA) >$(BUILD)/kda.1

.PHONY: docs
docs: program ## reference of the C++ and Python interfaces in build/docs (needs doxygen)
	scripts/docs.sh

.PHONY: wheel
wheel: program ## wheel of the Python package in dist
	$(PYTHON) -m pip wheel -q --no-deps --no-build-isolation -w dist .

.PHONY: tarball
tarball: program ## program that runs from any folder, in dist
	scripts/package_tarball.py $(BUILD) --out dist

.PHONY: image
image: ## container image kda:latest (docs/containers.md)
	docker build -t kda:latest --build-arg KDA_COMMIT=$$(git rev-parse --short=12 HEAD) .

##@ Other
.PHONY: status
status: build ## docs/status.md: what the tests measured, row by row (about five minutes)
	scripts/status.sh $(BUILD)

.PHONY: clean
clean: ## remove build folders (keeps .venv, data, runs)
	rm -rf build python/kda/lib
