SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help build cluster cluster-check cluster-sample cluster-test compatibility velero-checkout demo demo-real test verify race sweep nightly sim mutants reverts conformance bench scale monitored pictures image release manifests lint

BIN := $(CURDIR)/bin
PROGRAMS := bin/controlplane bin/velero bin/velero-1.17 bin/snapshot-controller bin/kubectl
# An S3 server, Velero's plugin for it, the init container of pods that Velero restores, and what installs the chart.
PROGRAMS += bin/versitygw bin/velero-plugin-for-aws bin/velero-restore-helper bin/helm
# What a cluster with a real kubelet needs besides.
CLUSTER_PROGRAMS := bin/kubenode bin/containerd bin/containerd-shim-runc-v2 bin/ctr bin/csi-provisioner bin/csi-attacher bin/csi-snapshotter
CLUSTER_PROGRAMS += bin/image bin/csi-driver
RELEASE_PROGRAMS := bin/release
comma := ,
space := $() $()
GOLANGCI_LINT_VERSION := 2.15.0
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
KUBERNETES := $(shell sed -n 's|^\tk8s.io/kubernetes v||p' test/cluster/go.mod)

# Programs, tests and linters are compiled with the same flags, or each of them would compile Kubernetes again. No C compiler is needed. A
# checkout that belongs to another user must build too, hence no VCS stamp; the version comes in by -ldflags.
export GOFLAGS := -buildvcs=false -trimpath
export CGO_ENABLED := 0
VERSION_PACKAGE := k8s.io/component-base/version
# $(call kubernetes-ldflags,VERSION) gives a program of Kubernetes its version, as its own build does.
kubernetes-ldflags = -X $(VERSION_PACKAGE).gitVersion=v$(1) \
	-X $(VERSION_PACKAGE).gitMajor=$(word 1,$(subst ., ,$(1))) -X $(VERSION_PACKAGE).gitMinor=$(word 2,$(subst ., ,$(1)))
KUBERNETES_LDFLAGS := $(call kubernetes-ldflags,$(KUBERNETES))

# Where the tests and the demo find the binaries.
export LATEEN_BIN := $(BIN)

# Builds thousands of packages with a line now and then; errors and warnings pass through.
progress = awk 'BEGIN { began = systime() } function line(count, what) { printf "  %3d s: %d %s\n", systime() - began, count, what; fflush() } \
	/^go: downloading/ { if (++d % 100 == 0) line(d, "modules downloaded"); next } \
	/[ :]/ { print; fflush(); next } { if (++n % 200 == 0) line(n, "packages compiled") }'

# $(call need,PROGRAM=PACKAGE[,PACKAGE] …) installs what is missing with apt, or says what to install.
define need
@want=""; for pair in $(1); do \
	command -v "$${pair%%=*}" >/dev/null || want+=" $$(tr , ' ' <<<"$${pair#*=}")"; done; \
if [ -z "$$want" ]; then exit 0; fi; \
if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	echo "make $@ needs$$want. Install with: sudo apt-get install$$want" >&2; exit 1; fi; \
echo "install:$$want (apt)"; \
apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$want >/dev/null
endef

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z\/ -]+:.*## / { printf "  %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/lateen, static
	@go build -v -ldflags "-s -w -X main.version=$(VERSION)" -o bin/lateen ./cmd/lateen 2>&1 | $(progress)

# The programs that the world is made of: in which module in test/ each one's version is pinned, the package there,
# and what is made besides.
controlplane := cluster ./controlplane
kubectl := kubectl .
velero := velero .
velero-1.17 := velero117 .
SNAPSHOTS := github.com/kubernetes-csi/external-snapshotter
snapshot-controller := snapshotter $(SNAPSHOTS)/v8/cmd/snapshot-controller
versitygw := versitygw github.com/versity/versitygw/cmd/versitygw
velero-plugin-for-aws := awsplugin github.com/vmware-tanzu/velero-plugin-for-aws/velero-plugin-for-aws
velero-restore-helper := velero github.com/vmware-tanzu/velero/cmd/velero-restore-helper
helm := helm helm.sh/helm/v4/cmd/helm
kubenode := kubenode .
CONTAINERD := containerd github.com/containerd/containerd/v2/cmd
containerd := $(CONTAINERD)/containerd
containerd-shim-runc-v2 := $(CONTAINERD)/containerd-shim-runc-v2
ctr := $(CONTAINERD)/ctr
csi-provisioner := provisioner github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner
csi-attacher := provisioner github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher
csi-snapshotter := snapshotter $(SNAPSHOTS)/v8/cmd/csi-snapshotter
image := image .
csi-driver := csidriver .
release := release .
ldflags-controlplane := $(KUBERNETES_LDFLAGS)
ldflags-kubectl := $(KUBERNETES_LDFLAGS)
ldflags-kubenode := $(KUBERNETES_LDFLAGS)
besides-snapshot-controller := cat "$$(go list -m -f '{{.Dir}}' $(SNAPSHOTS)/client/v8)"/config/crd/snapshot.*.yaml >$(BIN)/snapshot-controller.crds.yaml

# Minutes that each takes on 2 cores with an empty Go cache, in the order of PROGRAMS: the modules' downloads included.
minutes-controlplane := 6
minutes-velero := 4
minutes-velero-1.17 := 4
minutes-snapshot-controller := 1
minutes-kubectl := 2
minutes-versitygw := 2
minutes-velero-plugin-for-aws := 2
minutes-velero-restore-helper := 1
minutes-helm := 2
minutes-kubenode := 3
minutes-containerd := 2
minutes-containerd-shim-runc-v2 := 1
minutes-ctr := 1
minutes-csi-provisioner := 3
minutes-csi-attacher := 1
minutes-csi-snapshotter := 1
minutes-image := 1
minutes-csi-driver := 1
minutes-release := 1

# $(call with,PROGRAM …) makes lateen, if it is named, and the programs in bin/, and says before how long that takes.
define with
@missing=0; for each in $(foreach p,$(filter-out lateen,$(1)),$(p):$(minutes-$(p))); do \
	[ -e "bin/$${each%%:*}" ] || missing=$$((missing + $${each#*:})); done; \
[ "$$missing" = 0 ] || echo "make $@: builds what it needs into bin/ first, once: about $$missing min on 2 cores"
@$(MAKE) --no-print-directory --silent $(if $(filter lateen,$(1)),build) $(patsubst %,bin/%,$(filter-out lateen,$(1)))
endef

.SECONDEXPANSION:
$(PROGRAMS) $(CLUSTER_PROGRAMS) $(RELEASE_PROGRAMS): bin/%: $$(wildcard $$(addprefix test/$$(firstword $$($$*))/,go.mod go.sum $$(lastword $$($$*))/*.go))
	@echo "build: $@ (of the module test/$(firstword $($*)); about $(minutes-$*) min on 2 cores, once)"
	@cd test/$(firstword $($*)) && go build -v -ldflags "-s -w $(ldflags-$*)" -o $(CURDIR)/$@ $(lastword $($*)) 2>&1 | $(progress)
	@cd test/$(firstword $($*)) && $(or $(besides-$*),:)
	@touch $@

# The driver is a package of the tests: where sidecars and nodes are simulated, it is the same one.
bin/csi-driver: $(wildcard test/csi/driver/*.go)

# Debian's package, unpacked and not installed: nothing of it may start as a service.
MONITORING := bin/prometheus bin/promtool
$(MONITORING) &:
	@command -v apt-get >/dev/null || { \
		echo "make verify needs $(MONITORING) of Prometheus 2.42 or later, and without apt-get it cannot fetch them: put them there" >&2; exit 1; }
	@echo "unpack: $(MONITORING) (apt)"
	@mkdir -p bin; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; cd "$$dir"; \
	get() { apt-get download -qq -o APT::Sandbox::User=root prometheus; }; \
	get 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && get; } || { \
		echo "apt-get could not download the package prometheus; if it does not know it, run: sudo apt-get update" >&2; exit 1; }; \
	dpkg-deb -x prometheus_*.deb .; cp usr/bin/prometheus usr/bin/promtool $(BIN)/

demo: ## Show three backups, maintenance and a restore on a cluster in one process (BREAK=agent|class|maintenance|kill|restore sabotages one)
	@[ -e bin/lateen ] || echo "make demo: builds bin/lateen and bin/demo first; with an empty Go cache, about 5 minutes on 2 cores"
	@$(MAKE) --no-print-directory --silent build
	@cd test && go build -v -o $(BIN)/demo ./demo 2>&1 | $(progress)
	@bin/demo --break=$(BREAK)

demo-real: ## Show the same on a real control plane, with Velero's server and movers
	$(call need,bwrap=bubblewrap)
	$(call with,lateen controlplane velero)
	@cd test && go build -o $(BIN)/demo ./demo
	@bin/demo --real --break=$(BREAK)

# $(call before,TIME) says how long a target takes on 2 cores once everything is compiled, and $(call after) how long it took.
BEGAN := $(shell date +%s)
before = @echo "make $@: $(1) on 2 cores once everything is compiled"
after = @echo "make $@: ok after $$(($$(date +%s) - $(BEGAN))) s"

# Go's cache of results does not see that a program in bin/ has changed: what runs one is always run anew. Lint vets.
TEST := go test -count=1 -vet=off

# Tests of these packages of test/ need root, a real control plane or programs of others. So do tests of other packages whose names end with OnKubernetes.
KUBERNETES := bench e2e conformance install monitoring node sim/apiserver testenv
ON_KUBERNETES := /($(subst $(space),|,$(KUBERNETES)))$$

# Tests that take a minute or more, and those with a real Prometheus, run nightly.
SWEEP := AnyRequestMayFail
MONITORED := TheDashboardShowsTransfers

# Random tests play the same seeds in each run, unless the environment has a source of fresh ones.
FRESH = SEEDS_FROM=$${SEEDS_FROM:-$$(date +%s%N)}

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
	for module in cluster velero release; do (cd test/$$module && $(TEST) ./...) || exit 1; done
	CGO_ENABLED=1 $(TEST) -race $(CONCURRENT)
	cd test && $(TEST) -run 'OnKubernetes$$' -timeout 60m -p 2 -parallel 6 ./integration ./docs
	cd test && $(TEST) -skip '$(MONITORED)' -timeout 60m -p 2 -parallel 10 $(KUBERNETES:%=./%)
	$(call after)

# Packages that start goroutines or take locks. The race detector has nothing to find in the others.
CONCURRENT = $$(git ls-files '*.go' | grep -vE '^test/|_test[.]go$$' | xargs grep -lE '^\s+"sync(/atomic)?"$$|\bgo func|[.]Go\(' | xargs -n1 dirname | sort -u | sed 's|^|./|')

nightly: ## Run what make test and make verify leave out, with fresh seeds: all parts, even if one fails; seeds that fail are recorded
	@.ci/nightly

monitored: ## Have a real Prometheus scrape agents: panels of the dashboard have data, rules can be evaluated
	@$(MAKE) --no-print-directory --silent $(MONITORING)
	$(call with,lateen controlplane)
	cd test && $(TEST) -run '$(MONITORED)' ./monitoring

race: ## Run agents and conformance cases with the race detector
	$(call need,gcc=gcc$(comma)libc6-dev bwrap=bubblewrap)
	$(call with,lateen controlplane snapshot-controller velero-1.17)
	cd test && CGO_ENABLED=1 $(TEST) -race -timeout 2h -p 1 -parallel 6 ./embedded ./integration ./conformance

sweep: ## Fail each request of one transfer of each kind, in each way, in virtual time
	cd test && $(TEST) -v -run '$(SWEEP)' ./sim

sim: ## Play RUNS=1000 fresh schedules of whole agents in virtual time (SEED= repeats one and prints its smallest form)
	cd test && $(FRESH) $(TEST) -timeout 12h -v -run TestSchedules ./sim -runs $(or $(RUNS),1000) -seed $(or $(SEED),0) | grep -v '^ *\(===\|---\)'

mutants: ## Change COUNT=100 single lines of the product, one at a time, and count those that unit tests or the simulation find (SEED= repeats)
	cd test && go run ./mutants --count=$(or $(COUNT),100) --seed=$(or $(SEED),0)

reverts: ## Revert fixes in a copy, one at a time, and play up to RUNS=10000 schedules until one fails (NAMES=D1,D2 for some)
	cd test && go run ./mutants --reverts=sim/testdata/reverts --names=$(NAMES) --runs=$(or $(RUNS),10000)

# Velero's agent mostly waits: twelve of its cases at a time, which take less than 15 minutes each, keep within the 90.
AGENT := velero
conformance: ## Play all conformance cases against AGENT=velero or lateen, and record the results
	$(call need,bwrap=bubblewrap)
	$(call with,$(AGENT) controlplane snapshot-controller velero-1.17)
	cd test && $(TEST) -timeout 90m -parallel $(if $(filter velero,$(AGENT)),12,4) -v -run 'TestTheAgentConforms/cases/$(CASES)' \
		./conformance -agent $(AGENT) -record | grep --line-buffered -v '^==='

# The control plane of another minor version of Kubernetes: the same module, with requirements of its own. Its directory has links
# to the other programs, so that tests run with it as they are.
bin/kubernetes-%/controlplane: test/cluster/kubernetes-%.mod test/cluster/controlplane/main.go
	@echo "build: $@ (about $(minutes-controlplane) min on 2 cores, once)"
	@mkdir -p $(@D); cd test/cluster && go build -v -modfile=kubernetes-$*.mod -o $(CURDIR)/$@ -ldflags "-s -w \
		$(call kubernetes-ldflags,$(shell sed -n 's|^\tk8s.io/kubernetes v||p' test/cluster/kubernetes-$*.mod))" ./controlplane 2>&1 | $(progress)
	@for program in $(patsubst controlplane,snapshot-controller.crds.yaml,$(notdir $(PROGRAMS))) lateen; do ln -sf ../$$program $(@D)/; done

OTHER_KUBERNETES := $(patsubst test/cluster/kubernetes-%.mod,%,$(wildcard test/cluster/kubernetes-*.mod))
$(foreach minor,$(OTHER_KUBERNETES),$(eval minutes-kubernetes-$(minor)/controlplane := $(minutes-controlplane)))
compatibility: ## Run the tests of install, e2e and conformance on other versions of Kubernetes, and record the results (ON=1.37: one)
	$(call need,bwrap=bubblewrap)
	$(call with,lateen $(notdir $(PROGRAMS)) $(patsubst %,kubernetes-%/controlplane,$(OTHER_KUBERNETES)))
	@for minor in $(or $(ON),$(OTHER_KUBERNETES)); do \
		(cd test; export LATEEN_BIN=$(BIN)/kubernetes-$$minor; set -x; \
		$(TEST) -timeout 30m -p 1 -parallel 4 ./install ./e2e; \
		$(TEST) -timeout 30m -parallel 4 -v -run TestTheAgentConforms ./conformance -record -kubernetes $$minor | \
			grep -E '^(---|ok|FAIL)|cases passed') || exit 1; done

# Velero's module of its development branch is not at the Go proxy, so it is built of a checkout.
velero-checkout: ## Run the tests of test/e2e with server, movers and definitions of Velero 1.19 or newer (FROM=DIR: a clone of velero-io/velero)
	$(call need,bwrap=bubblewrap)
	@[ -d "$(FROM)/cmd/velero" ] || { echo "make $@ needs FROM=DIR, a clone of https://github.com/velero-io/velero" >&2; exit 1; }
	$(call with,lateen $(notdir $(PROGRAMS)))
	@mkdir -p bin/checkout; for program in $(filter-out velero,$(notdir $(PROGRAMS))) snapshot-controller.crds.yaml lateen; do ln -sf ../$$program bin/checkout/; done
	@cd "$(FROM)" && go build -v -o $(BIN)/checkout/velero ./cmd/velero 2>&1 | $(progress)
	cd test && LATEEN_BIN=$(BIN)/checkout $(TEST) -timeout 30m -parallel 4 ./e2e -history=25

bench: ## Compare with Velero's agent: throughput, API calls, memory (ONLY=pace|uploads|maintenance|memory; RECORD=1 keeps them in docs)
	$(call need,bwrap=bubblewrap)
	$(call with,lateen controlplane snapshot-controller velero)
	@cd test && go build -o $(BIN)/bench ./bench
	@bin/bench --only=$(ONLY) $(if $(RECORD),--record=docs/performance.md)

scale: ## Measure what an idle agent costs the API server (AGENTS=10,50,100 whole ones, HOLLOW=250,500 beside them)
	$(call with,controlplane snapshot-controller)
	cd test && $(TEST) -v -timeout 30m -run TestAnIdleAgentCostsWhatTheFormulaSays ./bench -backups=50 \
		-agents=$(or $(AGENTS),10$(comma)50$(comma)100) -hollow=$(or $(HOLLOW),250$(comma)500)

pictures: ## Write the diagram of the state machine in the documentation
	@go test ./reconcile/transfer -run TestEdges -update >/dev/null

# IMAGE has the registry in its name if it is to be pushed. Windows containers need a base image of Microsoft's, which has to
# come from a registry: WINDOWS_BASE=mcr.microsoft.com/windows/nanoserver:ltsc2022.
IMAGE = lateen:$(VERSION)
PLATFORMS := linux/amd64 linux/arm64 windows/amd64
WINDOWS_BASE :=
IMAGE_FILE := lateen-image

# $(call crosscompile,PLATFORM …) builds bin/lateen-SYSTEM-ARCHITECTURE for each of them.
define crosscompile
@for platform in $(1); do \
	out=bin/lateen-$${platform/\//-}; [ $${platform%/*} != windows ] || out+=.exe; \
	GOOS=$${platform%/*} GOARCH=$${platform#*/} go build -ldflags "-s -w -X main.version=$(VERSION)" -o $$out ./cmd/lateen; \
	printf '  %-32s %4d MiB\n' $$out $$(($$(stat -c %s $$out) >> 20)); done
endef

image: ## Write the image for all platforms, without an engine, as bin/lateen-image.tar (IMAGE=lateen:VERSION; PUSH=yes to its registry)
	$(call with,image)
	$(call crosscompile,$(PLATFORMS))
	@bin/image lateen --name=$(IMAGE) --version=$(VERSION) --platforms=$(subst $(space),$(comma),$(PLATFORMS)) \
		--windows-base=$(WINDOWS_BASE) --layout=bin/$(IMAGE_FILE) --archive=bin/$(IMAGE_FILE).tar
	@printf '  %-32s %4d MiB, %s\n' bin/$(IMAGE_FILE).tar $$(($$(stat -c %s bin/$(IMAGE_FILE).tar) >> 20)) $(IMAGE)
	@[ -z "$(PUSH)" ] || bin/image push --layout=bin/$(IMAGE_FILE) --name=$(IMAGE)

# The version as Helm wants it: a commit without a tag is 0.0.0-gCOMMIT, since a number must not begin with 0 there.
CHART_VERSION = $(or $(filter-out $(VERSION),$(VERSION:v%=%)),0.0.0-g$(VERSION))
RELEASE_PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64
DOWNLOAD := https://github.com/lateen-project/lateen/releases/download/$(VERSION)

release: ## Write bin/dist: program for each system, image, chart, SBOMs, checksums; the same commit gives the same bytes
	@rm -rf bin/dist && mkdir -p bin/dist
	@$(MAKE) --no-print-directory image
	$(call with,helm release)
	$(call crosscompile,$(filter-out $(PLATFORMS),$(RELEASE_PLATFORMS)))
	@cp bin/$(IMAGE_FILE).tar bin/dist/lateen_$(VERSION:v%=%)_image.tar
	@date=$$(git log -1 --format=%cI); chart=$$(mktemp -d); trap 'rm -rf "$$chart"' EXIT; \
	cp -r deploy/chart "$$chart/lateen"; find "$$chart" -exec touch -d "$$date" {} +; \
	bin/helm package "$$chart/lateen" --version $(CHART_VERSION) --app-version $(VERSION) --destination bin/dist >/dev/null; \
	bin/release --version=$(VERSION) --date="$$date" --binaries=bin --into=bin/dist --download=$(DOWNLOAD) \
		--platforms=$(subst $(space),$(comma),$(RELEASE_PLATFORMS))
	@cd bin/dist && LC_ALL=C && sha256sum -- * >checksums.txt && cat checksums.txt

# Debian's packages, unpacked and not installed, with those that they need and the machine lacks.
DEBIAN := runc containernetworking-plugins nftables busybox-static iproute2
bin/debian/unpacked:
	@command -v apt-get >/dev/null || { echo "make cluster needs apt-get, for $(DEBIAN)" >&2; exit 1; }
	@echo "unpack: $(DEBIAN) (apt)"
	@mkdir -p bin/debian; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	get() { apt-get install -qq -y --reinstall --no-install-recommends --download-only -o Debug::NoLocking=true \
		-o Dir::Cache::archives="$$dir" -o APT::Sandbox::User=root $(DEBIAN) >/dev/null; }; \
	get 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && get; } || { \
		echo "apt-get could not download $(DEBIAN); if it does not know them, run: sudo apt-get update" >&2; exit 1; }; \
	for package in "$$dir"/*.deb; do dpkg-deb -x "$$package" bin/debian; done
	@touch $@

# The cluster's directory. Its log is beside it, and stays if it does not start or stop as it should.
CLUSTER_DIR := /tmp/lateen-cluster
WITH_CLUSTER := lateen controlplane velero snapshot-controller kubectl versitygw velero-plugin-for-aws velero-restore-helper helm \
	$(notdir $(CLUSTER_PROGRAMS))
REALCLUSTER := cd test/realcluster && go build -o $(BIN)/realcluster .
define clusterfiles
$(call with,$(WITH_CLUSTER))
@$(MAKE) --no-print-directory --silent bin/debian/unpacked
@$(MAKE) --no-print-directory --silent image PLATFORMS=linux/amd64 IMAGE=lateen:cluster IMAGE_FILE=cluster-image
@$(REALCLUSTER)
endef

cluster: ## Start a cluster with a real kubelet, and leave it running (CLUSTER_DIR=/tmp/lateen-cluster); nothing of the machine is changed
	$(clusterfiles)
	@bin/realcluster start --bin=$(BIN) --dir=$(CLUSTER_DIR)

cluster-check: ## Say in one line what this machine lacks for a cluster with a real kubelet
	@$(REALCLUSTER)
	@bin/realcluster check

# The sample is a test of its own that runs some of the others.
cluster-sample: RUN := TestSample
cluster-sample: SKIP := -
cluster-test: SKIP := TestSample
# SHARD=1 to 4 runs the stories of some files, in about a quarter of an hour. The last shard has those of all other files.
STORIES := test/realcluster/stories
SHARD_1 := adopt
SHARD_2 := agent backup block class install machine volumes
SHARD_3 := node maintenance
SHARD_4 := $(filter-out $(SHARD_1) $(SHARD_2) $(SHARD_3) sample main,$(patsubst $(STORIES)/%_test.go,%,$(wildcard $(STORIES)/*_test.go)))
cluster-test: RUN = $(if $(SHARD),^($(shell grep -ho '^func Test[[:alnum:]]*' $(SHARD_$(SHARD):%=$(STORIES)/%_test.go) | cut -c6- | paste -sd '|'))$$)
cluster-sample: ## Run what CI runs of make cluster-test: files and snapshots there and back, priority class
cluster-test: ## Run the tests on a real cluster of their own (RUN=TestName for some, SHARD=1 to 4 for about a quarter)
cluster-sample cluster-test:
	$(clusterfiles)
	cd test/image && $(TEST) ./...
	@dir=$$(mktemp -u -d /tmp/lateen-cluster-test-XXXXXX); bin/realcluster start --bin=$(BIN) --dir=$$dir; \
	trap 'bin/realcluster stop --bin=$(BIN) --dir='$$dir EXIT; \
	(cd test/realcluster && LATEEN_CLUSTER=$$dir $(TEST) -timeout 90m -v -run '$(RUN)' -skip '$(SKIP)' ./stories)

manifests: ## Copy what the chart shares with deploy/base, and write the golden files of deploy
	go test ./deploy -update

# These modules wrap a whole program in a few lines. Some linters need facts of all dependencies, or build them in SSA form: in an
# empty cache that takes half a minute for each of them, and finds nothing in one call. The others check them too.
WRAPPERS := test/kubectl test/velero test/velero117
DEEP_LINTERS := contextcheck,exhaustive,fatcontext,govet,modernize,nilerr,revive,staticcheck,unparam,unused
lint: ## Check style, layers and forbidden calls, in every module
	@[ "$$(bin/golangci-lint version --short 2>/dev/null)" = $(GOLANGCI_LINT_VERSION) ] || { \
		echo "build: bin/golangci-lint $(GOLANGCI_LINT_VERSION) (about 2 minutes on 2 cores, once)"; \
		GOBIN=$(BIN) go install -v github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_LINT_VERSION) 2>&1 | $(progress); }
	@failed=0; for module in . test test/cluster test/csidriver test/image test/realcluster test/release $(WRAPPERS); do echo "lint: $$module"; \
		without=; [[ " $(WRAPPERS) " != *" $$module "* ]] || without=--disable=$(DEEP_LINTERS); \
		(cd $$module && $(BIN)/golangci-lint run --allow-serial-runners $$without --config $(CURDIR)/.golangci.yml ./...) || failed=1; done; exit $$failed
