# Tools are pinned in go.mod, or in tools/go.mod, and run as "go tool NAME".

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk '/^[a-z-]+:.* ## / { name = $$1; sub(/:/, "", name); sub(/.* ## /, ""); printf "  make %-15s %s\n", name, $$0 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## install what is missing, build, and run with a demo fleet (LAN=1: reachable from other machines)
	@scripts/vdevices
	@exec scripts/run

.PHONY: cluster
cluster: build ## run two cores, two edges and a demo fleet on this machine, to see what happens when one fails
	@exec scripts/cluster

.PHONY: build
build: ## build bin/fleetd
	@scripts/setup run
	@[ -e bin/fleetd ] || echo "Building fleetd; the first time this can take minutes"
	@go build -o bin/fleetd ./cmd/fleetd

.PHONY: dev
dev: ## run, and reload program and browser at every change
	@scripts/setup run
	@scripts/vdevices
	@exec go tool templ generate --watch --proxy=http://$${FLEETD_HTTP_ADDR:-127.0.0.1:8080} --open-browser=false --cmd=scripts/dev

.PHONY: test
test: ## everything that a change has to pass
	@scripts/setup test
	@scripts/test

.PHONY: test-long
test-long: ## the slower tests: large campaigns, fuzzing, coverage, more sanitizers
	@scripts/setup test-long
	@scripts/test long

.PHONY: firmware-test
firmware-test: ## the tests of firmware/ (STEPS="format asan": these; STEPS=long: of test-long)
	@scripts/setup $(if $(STEPS),test-long,test)
	@scripts/firmware-test $(STEPS)

.PHONY: firmware-mutate
firmware-mutate: ## change the firmware's core in 200 places, one by one; the tests must detect 90 % of the changes
	@scripts/setup test
	@scripts/firmware-mutate $(MUTATE)

.PHONY: lint
lint: ## the part of test that needs no database: format, generated code, vet, staticcheck
	@scripts/check-source
	@go vet ./...
	@go tool staticcheck ./...

.PHONY: format
format: ## format Go and templ files
	@git ls-files -co --exclude-standard -- '*.go' ':!*_templ.go' ':!*.gen.go' | \
		xargs go tool goimports -format-only -local fleetd -w
	@go tool templ fmt -log-level error .

.PHONY: generate
generate: ## generate the Go code of the templ pages, and the client's types of REST
	@scripts/generate

# Tests of durations, which are valid only on an idle machine.
bounded = ^(TestDeviceListIsInstant|TestSpeedWithTenThousandDevices|TestBulkSpeed|TestConditionsOfALargeFleet|TestSpokenCallAmongOthers|TestCallsDuringFlood|TestBootPollsDoNotWaitForVoiceServers|TestRecordSpeed)$$

.PHONY: bench-scale
bench-scale: ## measure pages and the record of 100,000 devices and 10 million calls, into bench/SCALE.md (CALLS=10000000)
	@scripts/setup test
	@go build -o bin/ ./bench ./cmd/fleetd
	@exec bin/bench scale --calls $(or $(CALLS),10000000) --output bench/SCALE.md

.PHONY: bench
bench: ## measure against Mosquitto and PostgreSQL, into bench/RESULTS.md and results.json (ROUNDS=5; COMPARE=FILE)
	@scripts/setup test
	@FLEETD_BOUNDS=1 go test -vet=off -count=1 -p 1 -timeout 20m -run '$(bounded)' ./web ./mcp/gateway ./fleet/postgres ./cmd/fleetd/server
	@go build -o bin/ ./bench ./cmd/fleetd
	@exec bin/bench --profile --output bench/RESULTS.md --json bench/results.json \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(COMPARE),--compare $(COMPARE))
	@$(MAKE) --no-print-directory bench-pages

.PHONY: bench-pages
bench-pages: ## measure the pages of the console in Chromium, with 5,000 simulated devices
	@scripts/setup test
	@go build -o bin/ ./cmd/fleetd
	@cd web/browsertest && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error >/dev/null && exec node bench.mjs

.PHONY: chaos
chaos: ## run scheduled faults under load, for at most 20 minutes (SEED=7, or SEEDS=1-50; MINUTES=5; CLUSTER=1)
	@scripts/setup test
	@FLEETD_CHAOS_SEEDS=$(or $(SEED),$(SEEDS),1-50) FLEETD_CHAOS_MINUTES=$(or $(MINUTES),20) \
		FLEETD_CHAOS_CLUSTER=$(CLUSTER) \
		go test -vet=off -count=1 -timeout 25m -v -run 'TestChaos$$' ./cmd/fleetd/server

.PHONY: clean
clean: ## remove built files, and the test databases; never the data directory
	@rm -rf bin web/browsertest/node_modules examples/plugins/dice/node_modules examples/plugins/dice/dist "$${TMPDIR:-/tmp}/fleetd-pgtest-$$(id -u)" "/dev/shm/fleetd-pgtest-$$(id -u)"
