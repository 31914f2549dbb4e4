# `make` lists the targets. Everything runs inside .venv; the user's own ~/.ansible is neither read nor written.

SHELL := bash
PYTHON ?= python3
TIERS := sanity-sample versions-sample lint workflows docs packaging molecule unit-sample browser integration-sample cluster demo faults-sample manifests-sample histories-sample releases-sample events environments neighbours node-sample kind

export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/.venv/collections
export ANSIBLE_HOME := $(CURDIR)/.venv/ansible
export ANSIBLE_REMOTE_TEMP := $(ANSIBLE_HOME)/tmp
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

.PHONY: venv
venv: .venv/ready ## The Python environment in .venv, built again when a requirements file has changed

.venv/ready: requirements.txt tests/requirements.txt tests/requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "Python 3.11 or newer is needed, which '$(PYTHON)' is not: name one, as in: make PYTHON=python3.11"; exit 1; }
	@echo "Installing the pinned requirements into .venv: about a minute the first time"
	@$(PYTHON) -m venv --clear .venv
	@$(or $(MEANWHILE),:) & .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes \
	  -r tests/requirements.lock && wait || { kill $$! 2> /dev/null; wait; exit 1; }
	@mkdir -p .venv/collections/ansible_collections/baton
	@ln -s ../../../.. .venv/collections/ansible_collections/baton/kubernetes
	@touch $@

COMPILE = build/pins/bin/pip-compile --quiet --generate-hashes --allow-unsafe --no-strip-extras --no-header --no-emit-index-url \
  --no-emit-find-links --no-emit-options --annotation-style=line
.PHONY: pins
pins: ## The lock files, after a change of a requirements file: every package with its hashes
	@$(PYTHON) -m venv build/pins
	@build/pins/bin/pip install --quiet --disable-pip-version-check pip-tools==7.6.2
	@$(COMPILE) --output-file tests/requirements.lock requirements.txt tests/requirements.txt
	@$(COMPILE) --output-file docs/requirements.lock --constraint tests/requirements.lock docs/requirements.txt
	@$(COMPILE) --output-file tests/packaging/requirements.lock tests/packaging/requirements.txt
	@$(COMPILE) --output-file tests/events/requirements.lock tests/events/requirements.txt
	@$(COMPILE) --output-file tests/mutation/requirements.lock tests/mutation/requirements.txt

.PHONY: demo
demo: MEANWHILE = .venv/bin/python tests/cluster build > /dev/null
demo: .venv/ready ## A cluster, a ReplicationController at v1, and what happens when it is rolled, killed, resumed
	@bash tests/demo/demo.sh

.PHONY: test test-all
test: .venv/ready ## Every tier that a change needs and this machine can run, and a summary: what CI runs
	@.venv/bin/python tests/run.py --change

test-all: .venv/ready ## Everything there is, each sample in full: hours; nightly, and before a release
	@.venv/bin/python tests/run.py --all

.PHONY: t
t: .venv/ready ## One test: make t T=path::test; BATON_KEEP_CLUSTER=1 keeps its cluster for the next one
	@$(if $(T),,$(error name a test, as in: make t T=tests/integration/test_resume.py))pytest -q -x --tb=short '$(T)'

.PHONY: $(TIERS:%=test-%)
test-lint: ## ruff, import-linter, mypy, yamllint, ansible-lint, antsibull
test-workflows: ## actionlint of .github, after a change there; needs Go
test-docs: ## The documentation as HTML, with every link checked, after a change there
test-unit-sample: ## pytest tests/unit without the longer explorations: no cluster
test-browser: ## The report as Chromium lays it out; installs Debian's package where there is none
test-sanity-sample: ## ansible-test sanity of the collection and of the tests that have changed
test-packaging: ## The built collection: what is in it, and galaxy-importer
test-integration-sample: ## The points of test-integration that a change needs: on the embedded cluster
test-cluster: ## The embedded cluster itself
test-demo: ## make demo
test-faults-sample: ## One point of each series of test-faults, always the same ones: 2 minutes
test-manifests-sample: ## Some of test-manifests, always the same ones: 90 seconds
test-histories-sample: ## The first seeds of test-histories: a minute
test-releases-sample: ## The first seeds of test-releases: two minutes
test-versions-sample: ## The oldest row of each kind of test-versions: a minute, and more the first time
test-events: ## An alert rolls an update back, with Alertmanager and ansible-rulebook, which needs Java: a minute
test-environments: ## The images of examples/, built on Debian, with an update from a container; needs root: five minutes, after a change there
test-neighbours: ## Updates next to real Helm, Flux and Argo Rollouts: eight minutes, and ten more to build them the first time
test-node-sample: ## The short part of test-node
test-molecule: ## The role image_bump on the embedded cluster
test-kind: ## The role image_bump on kind, and some of test-integration; needs a Docker engine with kind, or root to make one
$(TIERS:%=test-%): test-%: .venv/ready
	@.venv/bin/python tests/run.py $*

.PHONY: test-unit
test-unit: .venv/ready ## pytest tests/unit with every exploration: no cluster
	@.venv/bin/python tests/run.py unit

.PHONY: test-sanity
test-sanity: .venv/ready ## ansible-test sanity of all files
	@.venv/bin/python tests/run.py sanity

.PHONY: test-integration
test-integration: .venv/ready ## pytest tests/integration, all points: 20 minutes
	@.venv/bin/python tests/run.py integration

.PHONY: test-faults
test-faults: .venv/ready ## A kill at every write, a fault at every request; kubectl for comparison: 25 minutes
	@.venv/bin/python tests/run.py faults

.PHONY: test-manifests
test-manifests: .venv/ready ## Pod templates as public projects write them, and generated ones, rolled in every way: 20 minutes
	@.venv/bin/python tests/run.py manifests

.PHONY: test-histories
test-histories: .venv/ready ## Random tasks, killed at random writes, with other clients between them: 500 histories, 40 minutes
	@.venv/bin/python tests/run.py histories

.PHONY: test-releases
test-releases: .venv/ready ## Random releases by ansible-playbook, over one cluster or several, with kills and other clients: 40 minutes
	@.venv/bin/python tests/run.py releases

.PHONY: test-versions
test-versions: .venv/ready ## Other versions of ansible-core, of Python and of the package kubernetes; installs each: 10 minutes
	@.venv/bin/python tests/run.py versions

.PHONY: test-node
test-node: .venv/ready ## Real containers under live traffic; needs root, installs Debian packages: 50 minutes
	@.venv/bin/python tests/run.py node

.PHONY: test-gateway
test-gateway: .venv/ready ## Requests through Contour and Envoy to real containers; needs root, installs Debian packages: an hour
	@.venv/bin/python tests/run.py gateway

.PHONY: test-mutation
test-mutation: .venv/ready ## Mutants of the lines that have changed within a day, against their unit tests: an hour at most
	@.venv/bin/python tests/run.py mutation

.PHONY: measure
measure: .venv/ready ## How simple the code is, in numbers, each with its limit
	@.venv/bin/python tests/measure.py

.PHONY: bench
bench: .venv/ready ## Side by side with kubectl rolling-update and the Deployment controller
	@.venv/bin/python tests/bench

.PHONY: pictures
pictures: .venv/ready ## README's pictures, of a rollout that is really run: a minute, and more the first time
	@.venv/bin/python tests/cluster build
	@.venv/bin/python tests/pictures

.PHONY: permissions
permissions: .venv/ready ## The Roles of docs/reference/permissions, from the checks of the code
	@.venv/bin/python tests/permissions

.PHONY: docs
docs: .venv/ready ## The documentation as HTML, with every option, in build/docs/html; fetches Sphinx the first time
	@.venv/bin/python tests/docsite

.PHONY: changelog
changelog: .venv/ready ## CHANGELOG.rst, from changelogs/fragments, which are removed
	@antsibull-changelog release --update-existing

.PHONY: build release
build release: .venv/ready
	@.venv/bin/python tests/packaging $@
build: ## The collection as a file, in build/
release: ## The same, if the last commit can be released: docs/internals/releasing.md

.PHONY: cluster-up cluster-down
cluster-up cluster-down: cluster-%: .venv/ready
	@.venv/bin/python tests/cluster $*
cluster-up: ## A Kubernetes cluster on this machine
cluster-down: ## Stop it

.PHONY: clean
clean: ## Remove .venv, build/ and caches; the cluster's binaries stay in the user's cache
	@rm -rf .venv build .pytest_cache .ruff_cache .hypothesis .ansible .import_linter_cache .mypy_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +
