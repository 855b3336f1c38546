# What a newcomer and a developer type. `make` alone lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := operator trainer-image tests examples hack

.DEFAULT_GOAL := help
.PHONY: help install demo demo-length test test-all test-unit test-pythons test-e2e verify docs dashboard-pictures manifests notebook paper-tables format chart-score kind kind-down images lock sign release scan clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "HeteroTrain needs Python 3.11 to 3.13; name one with PYTHON=python3.11 make ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing into $(VENV), once: some minutes, most of them for torch"
	$(PIP) --editable '.[operator,cli,trainer]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --editable '.[operator,cli,trainer,dev]'
	@touch $@

install: $(VENV)/installed ## set up .venv with the command line and the training library

demo-length:
	@echo "the demo trains three unequal workers twice, which takes about two minutes once all is installed"

demo: demo-length $(VENV)/installed ## watch three unequal workers converge, against uniform batches (about 2 minutes)
	$(BIN)/heterotrain run examples/digits-hetero.yaml --compare Uniform --out out/demo --fresh

test: $(VENV)/installed-dev ## run the tests that need no cluster (10 minutes on two cores)
	hack/tests.sh $(ONLY)

test-all: $(VENV)/installed-dev ## run these, the long matrices, many more examples, and the other versions of Python
	hack/tests.sh --all $(ONLY)

test-unit: $(VENV)/installed-dev ## run the tests that start no gangs of workers and install no packages
	hack/tests.sh --unit $(ONLY)

test-pythons: $(VENV)/installed-dev ## run the unit tests on the other versions of Python that are here, all at once (7 minutes)
	hack/pythons.sh $(ONLY)

test-e2e: $(VENV)/installed-dev ## run the tests on the cluster that KUBECONFIG names, as `make kind images` makes it (25 minutes)
	hack/tests.sh --e2e $(ONLY)

manifests: $(VENV)/installed-dev ## regenerate the CRD, the chart's copy, the reference pages, the tables of metrics and the dashboard
	$(BIN)/python -m heterotrain_operator.api.generate.crd
	$(BIN)/python -m heterotrain_operator.api.generate.chart
	$(BIN)/python -m heterotrain_operator.api.generate.reference
	$(BIN)/python -m heterotrain_operator.experiments.scenarios.reference
	$(BIN)/python -m heterotrain_operator.metrics.reference
	$(BIN)/python hack/dashboard/dashboards.py

notebook: $(VENV)/installed-dev ## execute examples/notebook.ipynb and store what it shows (a minute)
	$(BIN)/python hack/notebook/execute.py

paper-tables: $(VENV)/installed-dev ## write docs/paper-tables.md and the benchmarks' pages from recorded results
	$(BIN)/python hack/bench/page.py

docs: $(VENV)/installed-dev ## write the documentation's site to out/site; a link or an anchor that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dashboard-pictures: $(VENV)/installed-dev ## take the documentation's pictures of the dashboards (needs node, Go, Chromium; 10 minutes)
	hack/kind/tools.sh prometheus
	hack/dashboard/preview/build.sh out/preview
	PYTHONPATH=tests:hack/bench:hack/pictures $(BIN)/python hack/dashboard/preview/pictures.py out/preview out/dashboards

verify: $(VENV)/installed-dev manifests docs ## run the linters and regenerate all that is generated; nothing may differ
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	git diff --exit-code

format: $(VENV)/installed-dev ## format the code
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

chart-score: ## let kube-score judge the chart (needs Go and helm)
	@hack/chart/score.sh

kind: ## make a test cluster of four nodes, on any Linux with Docker, or as root on a bare Debian (hack/kind/README.md)
	@hack/kind/up.sh

images: ## build the operator's and the trainer's image and load them into the test cluster, if it is up
	@hack/images/build.sh

lock: $(VENV)/bin/python ## write hack/images/*.lock, the hashes of what the images may install (asks the package index)
	$(BIN)/python hack/images/lock.py

sign: ## sign images of a registry with cosign, by digest: make sign IMAGES='registry/heterotrain-operator@sha256:...'
	@hack/images/sign.sh $(IMAGES)

release: $(VENV)/installed-dev ## make wheel, sdist, charts, lists of packages and checksums in out/release, and push images and charts: REGISTRY=... REPOSITORY=...
	@hack/release/release.sh

scan: $(VENV)/installed ## look for known vulnerabilities in the locks and in out/sbom (asks osv.dev, or the advisories in the folder ADVISORIES)
	@PYTHON=$(BIN)/python hack/release/scan.sh

kind-down: ## remove the test cluster and all that it has left, except what was built
	@hack/kind/down.sh

clean: ## remove the environment and what runs have left
	rm -rf $(VENV) $(VENV)-3.* out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
