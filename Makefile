# The commands of this project. `make setup` is implied by the others.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# Modules are compiled once, and not by every process of a sweep or a test.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-lowest test-newest check lint doctests check-crd coverage docs mutants bench bench-quick bench-regret test-slow bench-gpu ui clean

setup: $(STAMP)

# Compiled on all cores, where pip takes one, but for large parts of which little is imported; some
# packages hold files that are no Python of today.
SELDOM := /(tests|rllib|serve|transformers/models|torch/testing)/
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 -x '$(SELDOM)' $(VENV)/lib || true
	touch $@

# The main job on embedded data: a search within epsilon 6, then its best configuration.
demo: setup
	$(BIN)/dpsweep run tests/examples/digits.yaml
	$(BIN)/dpsweep best digits-demo --max-epsilon 2

# Two processes for each half; with Ray, each has a cluster of its own, and a file stays in one.
test: setup
	$(PYTEST) -n 2 -m 'not (ray or slow or gpu)'
	$(PYTEST) -n 2 --dist loadfile -m 'ray and not (slow or gpu)'

test-slow: setup
	$(PYTEST) -n 2 -m 'slow and not (ray or gpu)' --timeout=3600
	$(PYTEST) -m 'slow and ray and not gpu' --timeout=3600

# The lowest versions that pyproject.toml allows, and the newest Python that torch and ray have wheels
# for, each in an environment of its own (6 GB, removed afterwards); nothing that starts Ray.
LIGHT := -n 2 -m 'not (ray or slow or gpu)'
test-lowest:
	rm -rf build/lowest && $(PYTHON) -m venv build/lowest
	build/lowest/bin/python .ci/lowest.py pyproject.toml > build/lowest/constraints.txt
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check -c build/lowest/constraints.txt -e '.[test,scatternet,backbones,text,generation,server]'
	OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest $(LIGHT)
	rm -rf build/lowest

NEWEST ?= python3.13
test-newest:
	rm -rf build/newest && $(NEWEST) -m venv build/newest
	build/newest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,scatternet,backbones,text,generation,server]'
	OMP_NUM_THREADS=1 build/newest/bin/python -m pytest $(LIGHT)
	rm -rf build/newest

# The page of the spec's keys, from its schema.
docs: setup
	$(BIN)/python docs/make_reference.py

# Lint, types and imports (floors, doors) on the installed wheel, an import of the bare package;
# doctests beside them.
check: setup
	$(MAKE) --no-print-directory -j 2 lint doctests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/check && mkdir -p build/check
	$(BIN)/python -m build --wheel --outdir build/check . > build/check/build.log 2>&1 || (cat build/check/build.log; exit 1)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/check/site build/check/*.whl
	cd build/check/site && ../../../$(BIN)/mypy --config-file ../../../pyproject.toml -p dpsweep
	cd build/check/site && ../../../$(BIN)/lint-imports --config ../../../pyproject.toml --no-cache
	cd build/check/site && ../../../$(BIN)/python -I -c "import sys; sys.path.insert(0, '.'); import dpsweep; dpsweep.__version__; assert not {'torch', 'ray', 'mlflow'} & set(sys.modules)"

doctests: setup
	$(PYTEST) --doctest-modules --import-mode=importlib --ignore=platform/dpsweep/tracking/registry/served.py platform trainables search_spaces cluster

# Rendered RayJobs against a CRD of KubeRay's, which is not part of this project: CRD=ray.io_rayjobs.yaml.
RENDERED ?= $(wildcard tests/golden/cluster/*.kuberay.yaml)
check-crd: setup
	$(BIN)/python tests/check_crd.py $(CRD) $(RENDERED)

# Branches of what epsilons rest on that its own unit tests take: at least 95% in each room.
coverage: setup
	mkdir -p build
	$(PYTEST) -q -n 2 --cov=dpsweep.privacy --cov=dpsweep.ledgers --cov-branch --cov-report=json:build/coverage.json tests/unit/privacy tests/unit/ledgers
	$(BIN)/python tests/branch_floors.py build/coverage.json

# Edits of lines that privacy rests on; each must make the tests fail that are named for it.
mutants: setup
	$(BIN)/python tests/mutants/run.py

# Tables and plots of BENCHMARKS.md, peers beside them; BENCH='--only adamix' or '--check'.
BENCH ?=
bench: setup
	$(BIN)/python tests/benchmarks/run.py $(BENCH)

# Guards of the ratios, in less than three minutes.
bench-quick: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/quick.py

# What each honest search loses against an oracle; half an hour on the digits, hours on the pixels:
# REGRET=tests/benchmarks/regret_pixels.yaml. A second run goes on where the first has ended.
REGRET ?= tests/benchmarks/regret_digits.yaml
bench-regret: setup
	mkdir -p build
	$(BIN)/python tests/benchmarks/bench_regret.py $(REGRET) --epsilon 1 --epsilon 3 --out build/$(notdir $(basename $(REGRET))).json

# What needs a GPU: its tests, then linear heads, many heads, AdaMix, biases, sparse, networks, places.
bench-gpu: setup
	$(PYTEST) -m gpu; tests=$$?; \
	$(BIN)/python tests/benchmarks/run.py --device cuda --out build/bench-gpu.md && exit $$tests

ui: setup
	$(BIN)/dpsweep ui

# Studies, ledgers and tracking stores are kept: what was spent is on record there alone.
clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . \( -path './$(VENV)' -o -path ./studies -o -path ./mlartifacts -o -path ./mlruns \) -prune -o -name __pycache__ -prune -exec rm -rf {} +
