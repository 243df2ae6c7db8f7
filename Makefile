# make check before a commit; make test is what a newcomer runs.

GO       ?= go
FUZZTIME ?= 10s
PKGS     ?= ./...
BENCH    ?= .
# no: do not install missing Debian packages.
INSTALL  ?= yes

.PHONY: all build check fmt fmt-check vet lint test test-deps race fuzz bench cover vuln nocgo clean

all: build

build: ## gorun
	$(GO) build -o bin/gorun ./cmd/gorun

check: fmt-check vet lint test

fmt:
	gofmt -w .

fmt-check:
	@bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "gofmt: run make fmt for" $$bad; exit 1; fi

vet:
	$(GO) vet $(PKGS)

lint: bin/golangci-lint
	bin/golangci-lint config verify
	bin/golangci-lint run $(PKGS)
	@bad=$$(grep -rl --include='*.go' '^import "C"' . | grep -v '^./transport/libfabric/fi/'); \
	if [ -n "$$bad" ]; then echo 'import "C" outside of transport/libfabric/fi:' $$bad; exit 1; fi

# The other MPI libraries and the C compiler that some tests compare with.
test-deps:
	INSTALL=$(INSTALL) tools/install.sh

test: test-deps vet
	$(GO) test -timeout 15m $(PKGS)

race: test-deps
	CGO_ENABLED=1 $(GO) test -race -timeout 20m $(PKGS)

fuzz:
	GO="$(GO)" FUZZTIME=$(FUZZTIME) tools/fuzz.sh $(PKGS)

# Nothing else should run meanwhile.
bench: test-deps
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(PKGS)
	$(GO) run ./bench/compare

cover: test-deps
	$(GO) test -coverprofile=cover.out -coverpkg=./... $(PKGS)
	$(GO) tool cover -func=cover.out | tail -1

vuln: bin/govulncheck
	bin/govulncheck $(PKGS)

nocgo:
	CGO_ENABLED=0 $(GO) build $(PKGS)
	CGO_ENABLED=0 $(GO) vet $(PKGS)

clean:
	rm -rf bin cover.out

# Both are pinned by tools/go.mod and take a minute to compile, once.
bin/golangci-lint: tools/go.mod tools/go.sum
	$(GO) -C tools build -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/govulncheck: tools/go.mod tools/go.sum
	$(GO) -C tools build -o ../$@ golang.org/x/vuln/cmd/govulncheck
