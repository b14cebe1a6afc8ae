# serve, test and lint each create what they need: a virtual environment, the compiled engine, the weights.
# PYTHON chooses the interpreter (3.11 to 3.13); everything else lives in .venv and build/.

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip --disable-pip-version-check -q
JOBS   ?= 2
ENGINE_SOURCES = $(shell find engine_ext -type f -not -path '*/build/*')
PYTEST_ARGS ?=

CLIENT_ENVIRONMENTS = $(patsubst %,.venv-clients/%/.installed,openrouter langchain)

.PHONY: serve test test-clients sanitize cuda-check lint format build lock bench clean

serve: $(VENV)/.installed
	$(BIN)/ionrouter serve $(ARGS)

test: $(VENV)/.test-installed tests/clients/node/node_modules/.installed
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not clients" $(PYTEST_ARGS)

# The clients that bring packages of their own, each in its own environment; `make test` has the others.
test-clients: $(VENV)/.test-installed $(CLIENT_ENVIRONMENTS) tests/clients/node/node_modules/.installed
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m clients tests/clients $(PYTEST_ARGS)

# The core's tests, its stress among them, and the runner's, under the thread sanitizer and under those of
# addresses and undefined behaviour: some five minutes on two cores, one once built.
SANITIZERS = thread address,undefined
sanitize: $(VENV)/.test-installed
	PATH=$(abspath $(BIN)):$$PATH tests/engine_ext/sanitize.sh $(JOBS) $(SANITIZERS)

# Compiles every CUDA source for every architecture, and holds each kernel's registers and spills against
# tests/engine_ext/cuda/resources.json; wants nvcc, no GPU.
cuda-check: $(VENV)/.test-installed
	@if command -v nvcc >/dev/null; then \
	  $(BIN)/cmake -S tests/engine_ext/cuda -B build/cuda_check -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	    -DPython_EXECUTABLE=$(abspath $(BIN))/python && \
	  { $(BIN)/cmake --build build/cuda_check --clean-first --parallel $(JOBS) >build/cuda_check/log 2>&1 || \
	    { cat build/cuda_check/log; exit 1; }; } && \
	  $(BIN)/python -m tests.support.cuda_resources build/cuda_check/log; \
	else echo "cuda-check: skipped, nvcc is not there (the CUDA toolkit, 13.0 or newer, has it)"; fi

lint: $(VENV)/.test-installed
	$(BIN)/ruff check ionrouter tests
	$(BIN)/ruff format --check ionrouter tests
	$(BIN)/mypy ionrouter
	$(BIN)/lint-imports
	find engine_ext tests/engine_ext tests/device \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 $(BIN)/clang-format --style=file:engine_ext/.clang-format --dry-run -Werror

format: $(VENV)/.test-installed
	$(BIN)/ruff check --fix ionrouter tests
	$(BIN)/ruff format ionrouter tests
	find engine_ext tests/engine_ext tests/device \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 $(BIN)/clang-format --style=file:engine_ext/.clang-format -i

build: $(VENV)/.installed

# Dependencies first and with hashes; then the engine is compiled and the package installed in place.
$(VENV)/.dependencies: .ci/requirements.lock
	@command -v c++ >/dev/null || { echo "ionrouter compiles its engine: please install a C++20 compiler (Debian: apt-get install g++)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r .ci/requirements.lock
	touch $@

$(VENV)/.installed: $(VENV)/.dependencies pyproject.toml $(ENGINE_SOURCES)
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(PIP) install --no-deps -e .
	touch $@

$(VENV)/.test-installed: $(VENV)/.installed
	$(PIP) install -e '.[test]'
	touch $@

.venv-clients/%/.installed: tests/clients/python/requirements-%.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check -q install -r $<
	touch $@

tests/clients/node/node_modules/.installed: tests/clients/node/package-lock.json
	@command -v npm >/dev/null || { echo "the client tests need Node.js 20 or newer with npm"; exit 1; }
	npm ci --prefix tests/clients/node --silent --no-audit --no-fund
	touch $@

# Re-resolve the pinned dependencies after a change to pyproject.toml (needs uv).
lock:
	uv pip compile --universal --generate-hashes --python-version 3.11 --no-header --no-annotate pyproject.toml -o .ci/requirements.lock

clean:
	rm -rf build $(VENV) .venv-clients tests/clients/node/node_modules
	find ionrouter \( -name '_ion*.so' -o -name 'libion_cuda.so' \) -delete
