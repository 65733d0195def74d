# What people use. test/Makefile has the other targets, and how the programs are built that all of them need.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help build demo demo-real test verify nightly lint bench cluster

include test/Makefile

help: ## Show this list
	@awk -F ':.*## ' 'FNR < NR && FNR == 1 { print "In test/Makefile:" } /^[a-z\/ -]+:.*## / { printf "  %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/lateen, static
	@go build -v -ldflags "-s -w -X main.version=$(VERSION)" -o bin/lateen ./cmd/lateen 2>&1 | $(progress)

demo: ## Show three backups, maintenance and a restore on a cluster in one process (BREAK=agent|class|maintenance|kill|restore sabotages one)
	@[ -e bin/lateen ] || echo "make demo: builds bin/lateen and bin/demo first; with an empty Go cache, about 5 minutes on 2 cores"
	@$(MAKE) --no-print-directory --silent build
	@cd test && $(call link,./demo,$(BIN)/demo)
	@bin/demo --break=$(BREAK)

demo-real: ## Show the same on a real control plane, with Velero's server and movers
	$(call need,bwrap=bubblewrap)
	$(call with,lateen controlplane velero)
	@cd test && $(call link,./demo,$(BIN)/demo)
	@bin/demo --real --break=$(BREAK)

test: ## Run the tests that need nothing but Go: unit tests, simulation, agents and conformance cases on the embedded cluster
	$(call before,4 minutes)
	@$(MAKE) --no-print-directory --silent build
	go test -vet=off ./...
	cd test && $(TEST) -skip 'OnKubernetes$$|$(SWEEP)' -timeout 30m -p 3 -parallel 16 $$(go list ./... | grep -vE '$(ON_KUBERNETES)')
	$(call after)

verify: ## Run the tests that need root and apt: real control plane, Velero's server and movers, race detector
	$(call before,10 minutes)
	$(call need,gcc=gcc$(comma)libc6-dev bwrap=bubblewrap)
	@$(MAKE) --no-print-directory --silent $(MONITORING)
	$(call with,lateen $(notdir $(PROGRAMS)))
	for module in velero release; do (cd test/$$module && $(TEST) ./...) || exit 1; done
	CGO_ENABLED=1 $(TEST) -race $(CONCURRENT)
	cd test && $(TEST) -run 'OnKubernetes$$' -timeout 60m -parallel 6 ./integration
	cd test && $(TEST) -skip '$(MONITORED)' -timeout 60m -p 2 -parallel 10 $(SUITES:%=./%)
	$(call after)

nightly: ## Run what make test and make verify leave out, with fresh seeds: all parts, even if one fails; seeds that fail are recorded
	@.ci/nightly

lint: ## Check style, layers and forbidden calls, in every module
	$(golangci-lint)
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync $(MODULES:%=lint/%)

bench: ## Compare with Velero's agent: throughput, API calls, memory (ONLY=pace|uploads|maintenance|memory; RECORD=1 keeps them in docs, PROFILE=1 writes CPU profiles to bin)
	$(call need,bwrap=bubblewrap)
	$(call with,lateen controlplane snapshot-controller velero)
	@cd test && $(call link,./bench,$(BIN)/bench)
	@bin/bench --only=$(ONLY) $(if $(RECORD),--record=docs/performance.md) $(if $(PROFILE),--profiles=bin)

cluster: ## Start a cluster with a real kubelet, and leave it running (CLUSTER_DIR=/tmp/lateen-cluster); nothing of the machine is changed
	$(clusterfiles)
	@bin/realcluster start --bin=$(BIN) --dir=$(CLUSTER_DIR)
