# Every task of this repository. `make` and `make help` list them.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
GO ?= go
BIN := $(CURDIR)/bin

.PHONY: help run build deps test pg18 check lint fmt fuzz bench soak tidy cover clean

help: ## list the tasks
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):.*## /  make \1\t/' | expand -t 16

run: ## run the demo: a small orders API, protected
	$(GO) run ./cmd/escapement serve --demo

build: ## build the program into bin/
	$(GO) build -o $(BIN)/escapement ./cmd/escapement

deps: ## install what the tests need and this machine lacks (Debian packages)
	@scripts/deps

test: deps ## test all modules, with the race detector, in random order
	$(GO) test -race -shuffle=on -timeout 12m work

pg18: ## test store/pgstore on PostgreSQL 18 (of npm; not part of check)
	@scripts/pg18

check: lint test ## what a reviewer would run, and CI runs: lint, then test

lint: ## formatting, vet, staticcheck, over all modules
	@scripts/lint

fmt: ## format all Go files
	cd tools && GOWORK=off $(GO) build -o $(BIN)/ mvdan.cc/gofumpt
	$(BIN)/gofumpt -w $$(git ls-files '*.go')

fuzz: ## run each fuzz target for FUZZTIME (20s)
	@scripts/fuzz $${FUZZTIME:-20s}

bench: ## measure, side by side with others (see docs/PERFORMANCE.md)
	@scripts/bench

soak: ## the random campaigns at full length (hours)
	ESCAPEMENT_SOAK=1 $(GO) test -shuffle=on -timeout 12h work

tidy: ## tidy the go.mod files of all modules
	@scripts/tidy

cover: ## test coverage by package
	$(GO) test -coverpkg=github.com/escapement-dev/escapement/... -coverprofile=$(BIN)/cover.out work
	$(GO) tool cover -func=$(BIN)/cover.out | tail -1

clean: ## remove what was built
	rm -rf $(BIN)
