# `make` alone lists the targets. Times are for 2 cores.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# A toolchain that was installed a moment ago is not on this shell's PATH yet.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin

OPERATOR := target/debug/harvester-guest-operator
# Apart, because its flags would have the other build begin anew each time.
IMAGE_BUILD := target/image
XTASK := cargo run --locked --quiet --package xtask --

# Architectures of the image, by their names in OCI and Debian: amd64, arm64, or both in quotes.
HOST_ARCH := $(if $(filter aarch64,$(shell uname -m)),arm64,amd64)
ARCH ?= $(HOST_ARCH)
GNU_amd64 := x86_64
GNU_arm64 := aarch64

# What `make release` makes, and where. Key of SSH that signs it; without one it is not signed.
NAME := harvester-guest-operator
VERSION := $(shell sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)
RELEASE := target/release-$(VERSION)
SIGNING_KEY ?=

# How long each fuzz target runs, which there are, and what has the compiler count branches: on the
# stable toolchain, without cargo-fuzz.
FUZZ_SECONDS ?= 600
FUZZ_TARGETS := annotations conversion dhcp_client dhcp_packet ranges review
FUZZ_FLAGS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares

# Tests wait for something most of their time.
export RUST_TEST_THREADS ?= $(shell echo $$(( 4 * $$(nproc) )))

# Installs the Debian packages that the shell's array `missing` names.
define install_missing
if [ $${#missing[@]} -gt 0 ]; then \
		echo "setup: installing $${missing[*]}"; \
		sudo=(); [ "$$(id -u)" = 0 ] || sudo=(sudo); \
		"$${sudo[@]}" apt-get update -q; \
		"$${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$${missing[@]}"; \
	fi
endef

.PHONY: help setup rust cross nets lan build bed demo test slowest soak bench fuzz crds config docs \
	image chart sbom checksums sign release fmt lint check

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: rust ## Check what is needed, and install what Debian 12 has of it
	@[ -z "$${KUBEBUILDER_ASSETS:-}" ] || { echo "setup: all there"; exit 0; }; \
	if ! command -v go >/dev/null; then \
		echo "setup: go is missing; it builds the control plane. Install Go 1.26 or newer (https://go.dev/dl)," >&2; \
		echo "setup: or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager and kubectl, for tests kube-proxy too." >&2; \
		exit 1; \
	fi; \
	version=$$(go env GOVERSION); minor=$${version#go1.}; minor=$${minor%%[!0-9]*}; \
	if [ "$${minor:-0}" -lt 21 ]; then \
		echo "setup: $$version is too old. Install Go 1.26 or newer (https://go.dev/dl); from 1.21 on, go fetches the version it needs." >&2; \
		exit 1; \
	fi; \
	if ! command -v promtool >/dev/null && ! command -v apt-get >/dev/null; then \
		echo "setup: prometheus and promtool are missing, and there is no apt-get to fetch them with; tests of the chart need them on PATH" >&2; \
		exit 1; \
	fi; \
	echo "setup: all there"

# What the operator itself is built with.
rust:
	@missing=(); \
	command -v cc >/dev/null || missing+=(gcc libc6-dev); \
	command -v git >/dev/null || missing+=(git); \
	[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates); \
	$(install_missing); \
	if ! command -v cargo >/dev/null; then \
		echo "setup: cargo is missing. Install Rust with rustup (https://rustup.rs); rust-toolchain.toml names the version." >&2; \
		exit 1; \
	fi

# What the image for another architecture takes besides: Rust's standard library, a C compiler, and
# Debian's libraries, which the image holds.
cross: rust
	@missing=(); foreign=(); \
	for arch in $(filter-out $(HOST_ARCH),$(ARCH)); do \
		case $$arch in amd64) gnu=$(GNU_amd64);; arm64) gnu=$(GNU_arm64);; \
		*) echo "image: ARCH: $$arch must be amd64 or arm64" >&2; exit 1;; esac; \
		rustup target add "$$gnu-unknown-linux-gnu"; \
		command -v "$$gnu-linux-gnu-gcc" >/dev/null || missing+=("gcc-$${gnu/_/-}-linux-gnu" "libc6-dev-$$arch-cross"); \
		dpkg-query --show "libgcc-s1:$$arch" >/dev/null 2>&1 || { foreign+=("$$arch"); missing+=("libc6:$$arch" "libgcc-s1:$$arch"); }; \
	done; \
	for arch in "$${foreign[@]}"; do \
		sudo=(); [ "$$(id -u)" = 0 ] || sudo=(sudo); \
		"$${sudo[@]}" dpkg --add-architecture "$$arch"; \
	done; \
	$(install_missing)

# What tests make networks, and clocks, of their own with. As Debian configures them, none of the
# DHCP servers answers requests.
nets:
	@missing=(); \
	[ -n "$$(PATH=$$PATH:/usr/sbin:/sbin command -v ip)" ] || missing+=(iproute2); \
	[ -n "$$(PATH=$$PATH:/usr/sbin:/sbin command -v nft)" ] || missing+=(nftables); \
	[ -n "$$(PATH=$$PATH:/usr/sbin:/sbin command -v iptables)" ] || missing+=(iptables); \
	for each in dnsmasq:dnsmasq-base kea-dhcp4:kea-dhcp4-server dhcpd:isc-dhcp-server udhcpd:udhcpd; do \
		[ -n "$$(PATH=$$PATH:/usr/sbin:/sbin command -v "$${each%%:*}")" ] || missing+=("$${each##*:}"); \
	done; \
	compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || missing+=(libfaketime); \
	$(install_missing)

# What the demo makes a network with. Only root may make one; without, the demo skips that step.
lan:
	@[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0; \
	missing=(); \
	[ -n "$$(PATH=$$PATH:/usr/sbin:/sbin command -v ip)" ] || missing+=(iproute2); \
	[ -n "$$(PATH=$$PATH:/usr/sbin:/sbin command -v dnsmasq)" ] || missing+=(dnsmasq-base); \
	{ $(install_missing); } || echo "setup: they could not be installed; the demo skips its DHCP step"

build: rust ## Build the operator as demo and tests run it; `make image` optimizes
	cargo build --locked --workspace --bin harvester-guest-operator

bed: setup ## Start a control plane of one's own and print its KUBECONFIG
	cargo build --locked --workspace --bin bed
	target/debug/bed up

demo: setup lan ## Show the operator at work on control planes of its own (cold: 13 minutes)
	@$(XTASK) demo
	@target/debug/demo --operator $(OPERATOR)

test: setup nets ## Run everything: format, lints, all tests (cold: 30 minutes, later 17)
	@$(XTASK) test

slowest: ## The slowest 30 tests of the last run, and what they waited for
	@$(XTASK) slowest

# The tests that measure run one at a time, as `make test` runs them.
soak: setup nets ## Run the long forms of the tests that have one
	@echo "soak: a hostile tenant for 2 minutes, strangers for 1 minute, 100,000 admission calls in each of 4 tests"
	TENANT_SECONDS=120 STRANGERS_SECONDS=60 ADMISSION_CALLS=100000 \
		cargo test --locked --workspace --test it -- --test-threads=1 --nocapture \
		alone::tenant:: alone::strangers::a_tenant_is_served alone::closing:: \
		admission::rotation::a_serving_certificate_is_renewed \
		admission::rotation::an_authority_is_replaced
	@echo "soak: 100,000 random worlds of the model of pools"
	WORLDS=100000 cargo test --locked --workspace --lib -- pools::allocator::tests::model::

bench: setup nets ## Measure against a bare client in the same run
	@echo "bench: optimized builds, some minutes when cold, then half an hour of measuring"
	cargo build --locked --features jemalloc --profile agent --bin lease-agent
	cargo bench --locked --features jemalloc --bench bench

fuzz: rust ## Feed the parsers random input, FUZZ_SECONDS (600) each; findings end it
	@command -v c++ >/dev/null || { echo "fuzz: c++ is missing; it builds libFuzzer" >&2; exit 1; }
	@host=$$(rustc -vV | sed -n 's/^host: //p'); cd tests/fuzz; \
	echo "fuzz: building, some minutes when cold"; \
	RUSTFLAGS="$(FUZZ_FLAGS)" cargo build --locked --release --target "$$host"; \
	for target in $(FUZZ_TARGETS); do \
		echo "fuzz: $$target for $(FUZZ_SECONDS) s"; \
		mkdir -p "target/corpus/$$target" "target/findings"; \
		"target/$$host/release/$$target" -max_total_time=$(FUZZ_SECONDS) -max_len=8192 -timeout=10 \
			-rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="target/findings/$$target-" \
			"target/corpus/$$target" "seeds/$$target"; \
	done

crds: ## Write crds/ from src/api, and the chart's copy
	cargo build --locked --workspace --bin harvester-guest-operator
	$(OPERATOR) crds --out crds
	cp crds/*.yaml charts/harvester-guest-operator/files/crds/

config: ## Write config/ from the chart
	cargo build --locked --workspace --bin chart
	target/debug/chart config

docs: ## Write the generated pages of docs/reference
	WRITE_DOCS=1 cargo test --locked --workspace --test it -- documents::generated

# Kernels for arm64 have pages of 4, 16 or 64 KiB. jemalloc runs where they are no larger than the size
# that it was built for, 2^16 bytes here.
image: cross ## Write the image for ARCH, target/image.tar, without a container engine (cold: 25 minutes each)
	@echo "image: the programs for $(ARCH) without this machine's paths, some minutes when cold, seconds later"
	@cargo=$${CARGO_HOME:-$$HOME/.cargo}; \
	export RUSTFLAGS="--remap-path-prefix=$$cargo=/cargo --remap-path-prefix=$$PWD=/src"; \
	export CFLAGS="-ffile-prefix-map=$$PWD=/src -ffile-prefix-map=$$cargo=/cargo"; \
	export AWS_LC_SYS_NO_JITTER_ENTROPY=0; \
	export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=x86_64-linux-gnu-gcc; \
	export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc; \
	export AARCH64_UNKNOWN_LINUX_GNU_JEMALLOC_SYS_WITH_LG_PAGE=16; \
	for gnu in $(foreach arch,$(ARCH),$(GNU_$(arch))); do \
		to=(--target "$$gnu-unknown-linux-gnu" --target-dir $(IMAGE_BUILD)); \
		cargo build --locked --features jemalloc --release --bin $(NAME) "$${to[@]}"; \
		cargo build --locked --features jemalloc --profile agent --bin lease-agent "$${to[@]}"; \
	done
	cargo build --locked --workspace --bin image
	target/debug/image --out target/image.tar --bills target \
		$(foreach arch,$(ARCH),$(addprefix --program $(IMAGE_BUILD)/$(GNU_$(arch))-unknown-linux-gnu/,\
		release/$(NAME) agent/lease-agent))

sbom: image ## Write the bill of materials of each architecture's image, target/sbom-ARCH.cdx.json
	@ls -l $(foreach arch,$(ARCH),target/sbom-$(arch).cdx.json)

chart: setup ## Write the chart's archive, target/harvester-guest-operator-VERSION.tgz
	cargo build --locked --workspace --bin chart
	target/debug/chart package --out target

checksums: ## Write the checksums of the release's files
	@cd $(RELEASE); files=(*.tar *.tgz *.json *.md); sha256sum "$${files[@]}" | tee SHA256SUMS

sign: ## Sign the checksums with SIGNING_KEY, a key of SSH
	@[ -n "$(SIGNING_KEY)" ] || { echo "sign: set SIGNING_KEY to the path of a private key of SSH, or of a public one whose private key an agent has" >&2; exit 1; }
	@rm -f $(RELEASE)/SHA256SUMS.sig
	ssh-keygen -Y sign -n $(NAME) -f "$(SIGNING_KEY)" $(RELEASE)/SHA256SUMS
	ssh-keygen -Y check-novalidate -n $(NAME) -s $(RELEASE)/SHA256SUMS.sig < $(RELEASE)/SHA256SUMS

release: ## Write all of a release to target/release-VERSION, for amd64 and arm64
	@[ -z "$$(git status --porcelain)" ] || { echo "release: commit first: the image names the commit that it is built from" >&2; exit 1; }
	@tag=$$(git tag --points-at HEAD --list 'v*'); [ -z "$$tag" ] || [ "$$tag" = v$(VERSION) ] || \
		{ echo "release: the tag is $$tag, the version in Cargo.toml is $(VERSION)" >&2; exit 1; }
	$(MAKE) image ARCH="amd64 arm64"
	$(MAKE) chart
	@rm -rf $(RELEASE); mkdir $(RELEASE)
	cp target/image.tar $(RELEASE)/$(NAME)-$(VERSION)-image.tar
	cp target/sbom-amd64.cdx.json $(RELEASE)/$(NAME)-$(VERSION)-amd64.cdx.json
	cp target/sbom-arm64.cdx.json $(RELEASE)/$(NAME)-$(VERSION)-arm64.cdx.json
	cp target/$(NAME)-$(VERSION).tgz $(RELEASE)/
	@{ echo "# $(NAME) $(VERSION)"; echo; \
	echo "Image for amd64 and arm64: \`$$(tar -xOf target/image.tar index.json | grep -o 'sha256:[0-9a-f]*')\`"; \
	sed -n '/^## $(VERSION)/,/^## /{/^## /d;p}' docs/changelog.md; } > $(RELEASE)/RELEASE.md
	$(MAKE) checksums
	@if [ -n "$(SIGNING_KEY)" ]; then $(MAKE) sign; else echo "release: not signed: SIGNING_KEY is not set"; fi

fmt: ## Format the sources
	cargo fmt --all

lint: ## Format check and lints
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

check: lint ## What needs no control plane: lints and unit tests
	cargo test --locked --workspace --lib
