# Every target sets up what it needs: .venv, the native build, the embedded model.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REFERENCE := .venv-reference
EMULATED := .venv-emulated
SANITIZED := .venv-sanitized
NATIVE := $(wildcard native/*.cpp native/*.h native/CMakeLists.txt)
PROMPT ?= What is the capital of France?
ARGS ?=
SECONDS ?= 600
BEAMS ?= 1

VENDOR := src/octavo/dashboard/static/vendor

.PHONY: help install page browser model serve lab top soak generate chat inspect test test-emulated test-sanitized test-reference lint format bench bench-parts clean
.DEFAULT_GOAL := help

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(VENV)/.installed: pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

install: $(VENV)/.installed page  ## .venv with Octavo and its native part

$(VENDOR)/uPlot.esm.js: web/package-lock.json
	cd web && npm ci --ignore-scripts --no-audit --no-fund --silent --fetch-retries=1
	mkdir -p $(VENDOR)
	cp web/node_modules/uplot/dist/uPlot.esm.js web/node_modules/uplot/dist/uPlot.min.css web/node_modules/uplot/LICENSE $(VENDOR)

page:  ## The plot library of the page, from npm where that is installed
	@if command -v npm >/dev/null; then $(MAKE) --silent --no-print-directory $(VENDOR)/uPlot.esm.js \
	  || echo "npm failed: the page shows tables instead of plots"; \
	else echo "npm is not installed: the page shows tables instead of plots"; fi

browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null; } \
	  || echo "chromium is not installed: the tests in a browser are skipped"

model: install  ## Fetch the embedded model into the user's cache folder
	@$(BIN)/python -m octavo.execution.embedded >&2

serve: model  ## Serve the embedded model on http://127.0.0.1:8000
	@$(BIN)/octavo serve $(ARGS)

lab: install  ## The simulator as a page on http://127.0.0.1:8001: no model
	@$(BIN)/octavo lab $(ARGS)

top: install  ## Watch a running server
	@$(BIN)/octavo top $(ARGS)

soak: install  ## Two hundred clients against a small pool for SECONDS=600
	OCTAVO_SOAK_SECONDS=$(SECONDS) $(BIN)/python -m pytest -s tests/cpu/server/test_soak.py

generate: model  ## Answer PROMPT="..." (more flags in ARGS)
	@$(BIN)/octavo generate $(ARGS) "$(PROMPT)"

chat: model  ## Chat with the embedded model
	@$(BIN)/octavo chat $(ARGS)

inspect: model  ## Sizes of the embedded model
	@$(BIN)/octavo inspect $(ARGS)

test: model browser  ## Every test that needs no GPU and no PyTorch
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder $(ARGS)

$(EMULATED)/.installed $(SANITIZED)/.installed: %/.installed: pyproject.toml $(NATIVE)
	test -x $*/bin/python || $(PYTHON) -m venv $*
	$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' \
	  --config-settings=build-dir=build/$* --config-settings=cmake.define.OCTAVO_EMULATE_AVX512=ON \
	  $(if $(filter $(SANITIZED),$*),--config-settings=cmake.define.OCTAVO_SANITIZE=ON)
	touch $@

test-emulated: model $(EMULATED)/.installed  ## The tests of kernels on every path, AVX-512 and VNNI emulated with AVX2
	$(EMULATED)/bin/python -m pytest --numprocesses auto --dist loadfile tests/cpu/test_native_*.py tests/cpu/test_bit_exact.py \
	  tests/cpu/execution tests/cpu/llm $(ARGS)

test-sanitized: $(SANITIZED)/.installed  ## The tests of kernels under AddressSanitizer and UndefinedBehaviorSanitizer (GCC)
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6)" PYTHONMALLOC=malloc \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  $(SANITIZED)/bin/python -m pytest -s tests/cpu/test_native_*.py $(ARGS)

$(REFERENCE)/.installed: tests/reference/requirements.txt
	test -x $(REFERENCE)/bin/python || $(PYTHON) -m venv $(REFERENCE)
	$(REFERENCE)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --requirement $<
	touch $@

test-reference: model $(REFERENCE)/.installed  ## Recompute the golden values with PyTorch and transformers (BEAMS=3: a third of the beams)
	PYTHONPATH=src:tests $(REFERENCE)/bin/python tests/reference/recompute.py --check
	PYTHONPATH=src:tests $(REFERENCE)/bin/python tests/reference/recompute_text.py --check
	PYTHONPATH=src:tests $(REFERENCE)/bin/python tests/reference/recompute_beams.py --check --every $(BEAMS)

lint: install  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install  ## Let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: model  ## Octavo, and each peer whose place ARGS gives, on the same requests (benchmarks/peers.py)
	@$(BIN)/python benchmarks/peers.py $(ARGS)

bench-parts: model  ## Scheduler, kernels and attention beside their limits, quantised weights, the start (ARGS: scheduler's)
	$(BIN)/python benchmarks/scheduler.py $(ARGS)
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/quantization.py
	$(BIN)/python benchmarks/startup.py

clean:  ## Remove everything that was built
	rm -rf $(VENV) $(REFERENCE) $(EMULATED) $(SANITIZED) $(VENDOR) web/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
