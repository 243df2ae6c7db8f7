# Run make check before a commit. make test alone runs the tests.

GO       ?= go
FUZZTIME ?= 10s
PKGS     ?= ./...
BENCH    ?= .
# Number of packages whose tests run at the same time: more than the cores of a small machine,
# because many tests wait.
TESTS    ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 3 ? 3 : n)))
# Whether to install Debian packages that tests need and that are missing: yes or no.
INSTALL  ?= yes
# What to do if libfabric is missing: yes: fail; auto: leave out its tests.
LIBFABRIC ?= auto

# The libfabric transport is built and tested if pkg-config finds the library. make
# expands this when a recipe starts, because test-deps may have installed the library.
tags = $(shell pkg-config --exists libfabric 2>/dev/null && echo -tags=libfabric)

# Packages whose code differs if they are built without the tag libfabric, and the tests of what
# differs. make test also runs these without it.
UNTAGGED ?= -run 'Info|Libfabric|Fabric|Provider|Complet' ./launcher/... ./cmd/...

.PHONY: all build check fmt fmt-check generate generate-check vet lint test test-deps testprov race fuzz bench bench-peers stress cover vuln nocgo cross portable arm64 fi-2x dist dist-check clean

all: build

build: ## builds gorun
	$(GO) build $(tags) -o bin/gorun ./cmd/gorun

check: fmt-check vet lint test

fmt:
	gofmt -w .

fmt-check:
	@bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "gofmt: run make fmt for" $$bad; exit 1; fi

generate: ## writes the assembly of internal/kernel
	$(GO) generate $(PKGS)

# Checks that the committed files are those that the generator writes.
generate-check:
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	$(GO) -C internal/kernel/gen run . "$$dir" && \
	for f in "$$dir"/*; do cmp "$$f" "internal/kernel/$${f##*/}" || { echo run make generate; exit 1; }; done

vet:
	$(GO) vet $(PKGS)
	$(if $(tags),$(GO) vet $(tags) $(PKGS))
	$(GO) -C bench/peers/plot vet ./...
	$(GO) -C deploy/kubernetes/validate vet ./...
	$(GO) -C examples/parquet vet ./...
	$(GO) -C launcher/internal/trace/schema vet ./...
	$(GO) -C test/browser vet ./...

lint: bin/golangci-lint generate-check
	tools/words.sh
	bin/golangci-lint config verify
	bin/golangci-lint run $(PKGS)
	cd internal/kernel/gen && ../../../bin/golangci-lint run
	cd deploy/kubernetes/validate && ../../../bin/golangci-lint run
	cd examples/parquet && ../../bin/golangci-lint run
	cd launcher/internal/trace/schema && ../../../../bin/golangci-lint run
	cd test/browser && ../../bin/golangci-lint run
	$(if $(tags),bin/golangci-lint run --build-tags libfabric $(PKGS))
	@bad=$$(grep -rl --include='*.go' '^import "C"' . | grep -v -e '^./transport/libfabric/fi/' -e '^./device/cuda/'); \
	if [ -n "$$bad" ]; then echo 'import "C" outside of transport/libfabric/fi and device/cuda:' $$bad; exit 1; fi

# Installs what some tests need: Open MPI and MPICH, a C compiler, libfabric, Chromium, and the
# programs with which tests make hosts of Linux namespaces.
test-deps:
	INSTALL=$(INSTALL) tools/install.sh
	@pkg-config --exists libfabric || { \
		echo "pkg-config does not find libfabric (Debian, Ubuntu: libfabric-dev): the tests of the libfabric transport DO NOT RUN" >&2; \
		[ "$(LIBFABRIC)" != yes ]; }

# Builds testprov, a provider of libfabric for tests (ADR 31), if libfabric is there. Tests that use
# testprov build it, too, and set FI_PROVIDER_PATH to its folder.
testprov: test-deps
	$(if $(tags),$(MAKE) -s -C transport/libfabric/testprov OUT=$(CURDIR)/bin/testprov/$(shell pkg-config --modversion libfabric)/libtestprov-fi.so)

# If root runs it, it also runs the tests on several hosts, which are made of Linux namespaces
# (internal/testbed).
test: test-deps vet testprov
	$(GO) test $(tags) -p $(TESTS) -timeout 15m $(PKGS)
	$(if $(tags),$(GO) test -timeout 8m $(UNTAGGED))
	$(GO) -C bench/peers/plot test ./...
	$(GO) -C deploy/kubernetes/validate test -count=1 ./... # -count=1: go's test cache does not notice changes of the manifests
	$(GO) -C examples/parquet test -count=1 -timeout 4m ./... # -count=1: the tests run gorun, which go's test cache does not notice
	$(GO) -C launcher/internal/trace/schema test -count=1 -timeout 4m ./... # -count=1: the tests run gorun
	$(GO) -C test/browser test -count=1 -timeout 4m ./... # -count=1: as above
	$(GO) test -tags purego -timeout 2m ./internal/kernel/...

# Without the packages whose tests only start programs, which are built without the race detector.
race: test-deps
	CGO_ENABLED=1 $(GO) test -race $(tags) -p $(TESTS) -timeout 20m \
		$(if $(filter ./...,$(PKGS)),$$($(GO) list $(tags) ./... | grep -vE '/weft/(bench(/.*)?|docs|examples|test/.*)$$'),$(PKGS))

# Runs every fuzz target for the time FUZZTIME. As many targets run at the same time as there are
# cores.
fuzz:
	GO="$(GO)" GOFLAGS="$(GOFLAGS) $(tags)" FUZZTIME=$(FUZZTIME) tools/fuzz.sh $(PKGS)
	cd deploy/kubernetes/validate && GO="$(GO)" FUZZTIME=$(FUZZTIME) ../../../tools/fuzz.sh ./...

# No other program should run during the measurement.
bench: test-deps
	$(GO) test $(tags) -run '^$$' -bench '$(BENCH)' -benchmem $(PKGS)
	$(GO) run ./bench/compare

# Compares weft, Open MPI and MPICH, which takes a quarter of an hour. The flags -rounds,
# -time, -ranks and -only make it shorter: make bench-peers PEERS='-rounds 1'.
bench-peers: test-deps
	$(GO) run ./bench/peers -write docs/performance.md -svg docs/peers.svg $(PEERS)

# Runs random jobs, and jobs in which a rank is killed: make stress STRESS='-jobs 10000 -kills 300'
stress:
	$(GO) run ./bench/stress $(STRESS)

# Writes the files of a release to the directory dist, and checks them.
dist:
	GO="$(GO)" tools/dist/dist.sh

dist-check: dist
	INSTALL=$(INSTALL) tools/install.sh rpm=rpm man=man-db readelf=binutils
	tools/dist/check.sh

cover: test-deps
	$(GO) test $(tags) -coverprofile=cover.out -coverpkg=./... $(PKGS)
	$(GO) tool cover -func=cover.out | tail -1

vuln: bin/govulncheck
	bin/govulncheck $(tags) $(PKGS)

nocgo:
	CGO_ENABLED=0 $(GO) build $(PKGS)
	CGO_ENABLED=0 $(GO) vet $(PKGS)
	CGO_ENABLED=0 GOARCH=arm64 $(GO) vet $(PKGS)

# Compiles and vets all code for macOS and FreeBSD, tests included, except the files that need
# Linux.
cross:
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 $(GO) vet $(PKGS)
	CGO_ENABLED=0 GOOS=freebsd GOARCH=amd64 $(GO) vet $(PKGS)

# Tests, on Linux, the code that is used on other systems in place of Linux's own system calls
# (build tag portable). Also runs jobs with that code: without shared memory, epoll, pidfds,
# memory files and subreapers.
portable: test-deps
	$(GO) test -tags portable -short -timeout 4m ./internal/sys ./internal/bootstrap ./transport/tcp ./transport/inproc ./launcher/internal/procs
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(GO) build -tags portable -o "$$dir" ./cmd/gorun ./examples/ring ./examples/heat2d && \
	"$$dir/gorun" -np 4 "$$dir/ring" && "$$dir/gorun" -np 4 "$$dir/heat2d" && \
	! "$$dir/gorun" -np 2 false && ! "$$dir/gorun" -np 2 -timeout 1s sleep 1000

# Runs tests of the code for Linux on arm64, under qemu-user.
arm64:
	INSTALL=$(INSTALL) tools/install.sh qemu-aarch64=qemu-user
	GO="$(GO)" tools/arm64.sh

# Runs the tests of the transport over libfabric with libfabric 2.x, which tools/libfabric2.sh
# builds once into the cache. TESTED_LIBFABRIC is the version that the tests check, and restricts
# tests over fabrics to those of libfabric. fi2x_skip are long tests of internal/mpi without
# libfabric. -count=1, because go's test cache does not notice another library.
fi2x      = $(CURDIR)/.cache/libfabric-2.1.0
fi2x_skip = RaceDetector|^TestCollectives$$|LegalFaults|HugeMessages|WrongOpsDoNotCompile|HostRefuses
fi-2x: export PKG_CONFIG_PATH = $(fi2x)/lib/pkgconfig
fi-2x: export CGO_CFLAGS = -O2 -g -I$(fi2x)/include
fi-2x: export CGO_LDFLAGS = -O2 -g -L$(fi2x)/lib -Wl,-rpath,$(fi2x)/lib
fi-2x: export LD_LIBRARY_PATH = $(fi2x)/lib
fi-2x: export PATH := $(fi2x)/bin:$(PATH)
fi-2x: export TESTED_LIBFABRIC = 2.1
fi-2x:
	INSTALL=$(INSTALL) tools/libfabric2.sh $(fi2x)
	$(GO) vet -tags libfabric ./transport/libfabric/...
	$(GO) test -count=1 -tags libfabric -timeout 11m -skip '$(fi2x_skip)' ./transport/libfabric/... ./internal/mpi ./internal/mpiio
	$(GO) test -count=1 -tags libfabric -timeout 4m -run 'Libfabric|InfoOfProvider|InfoLists' ./examples ./bench/... ./launcher ./cmd/gorun

clean:
	rm -rf bin cover.out

# tools/go.mod pins the versions of these tools. To compile them takes a minute, only the first time.
bin/golangci-lint: tools/go.mod tools/go.sum
	$(GO) -C tools build -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/govulncheck: tools/go.mod tools/go.sum
	$(GO) -C tools build -o ../$@ golang.org/x/vuln/cmd/govulncheck
