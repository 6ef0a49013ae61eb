# Everything runs as root with rustc installed; `make setup` brings the other tools. `make help` lists the targets.

CARGO   ?= cargo
# The test node's system: trixie, bookworm, sid or trixie-arm64.
IMAGE   ?= trixie
IMAGE_ARCH := $(if $(filter %-arm64,$(IMAGE)),arm64,amd64)
# The architecture of a triple, or of a machine, as Debian and OCI name it.
arch_of  = $(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(firstword $(subst -, ,$(1)))))
# The host as rustc names it, and its architecture.
HOST    := $(shell rustc -vV 2> /dev/null | sed -n 's/^host: //p')
HOST_ARCH := $(call arch_of,$(or $(HOST),$(shell uname -m)))
# The architecture of packages and images: amd64 or arm64. One that is not the host's is built by Debian's cross compiler, in target/ARCH.
override ARCH := $(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(or $(ARCH),$(if $(filter %-arm64,$(IMAGE)),arm64,$(HOST_ARCH)))))
CROSS   := $(filter-out $(HOST_ARCH),$(ARCH))
triple   = $(patsubst amd64,x86_64,$(patsubst arm64,aarch64,$(1)))-unknown-linux-gnu
# How the names of its compiler and binutils begin.
gnu      = $(subst -unknown,,$(triple))-
override TARGET := $(or $(TARGET),$(if $(CROSS),$(call triple,$(CROSS)),$(HOST)))
# Contradictions are reported before anything is built.
GOALS   := $(or $(MAKECMDGOALS),help)
ifneq ($(filter-out help clean,$(GOALS)),)
ifneq ($(filter-out amd64 arm64 $(HOST_ARCH),$(ARCH))$(word 2,$(ARCH)),)
$(error ARCH=$(ARCH): expected amd64 or arm64)
endif
ifneq ($(filter-out help clean setup selinux,$(GOALS)),)
ifeq ($(HOST),)
$(error rustc cannot be run ($(shell rustc -vV 2>&1 | head -n 1)): install the rust-version of Cargo.toml or a newer one)
endif
endif
ifneq ($(filter-out $(ARCH),$(call arch_of,$(TARGET))),)
$(error TARGET=$(TARGET) is for $(call arch_of,$(TARGET)), and ARCH=$(ARCH))
endif
endif
# These boot a test node, `check` only at its end.
ifneq ($(filter node-test node-test-quick soak demo check check-quick,$(GOALS)),)
ifneq ($(HOST_ARCH),amd64)
$(error the test node needs an amd64 host: this one is $(HOST_ARCH))
endif
ifneq ($(IMAGE_ARCH),$(ARCH))
$(error IMAGE=$(IMAGE) is a node of $(IMAGE_ARCH), and ARCH=$(ARCH))
endif
ifneq ($(and $(filter arm64,$(ARCH)),$(VFIO)$(NODE_CPUS)),)
$(error IMAGE=$(IMAGE): VFIO and NODE_CPUS have no node of arm64)
endif
endif
# FAST=1 builds the packages in the profile of the tests, which is not optimised: for `make check`, for `make demo` unless it is told FAST=,
# and for trying things.
FAST    ?= $(if $(filter demo,$(MAKECMDGOALS)),1)
PROFILE := $(if $(FAST),fast,release)
# The cluster's programs are built for speed, not for size.
CLUSTER_PROFILE := $(if $(FAST),fast,cluster)
# FILTER=name runs only the node tests whose name contains it.
FILTER  ?=
# Where `make install` installs.
DESTDIR ?=
PREFIX  ?= /usr
# Which package `make deb` builds and `make install` installs: stelia-publish, stelia-cluster and stelia-placement are the others, built together.
PACKAGE ?= steliad
# VFIO=1: a test node with an IOMMU and devices for its guests, and the tests that need one.
VFIO    ?=
# The node tests of a section, by the names that tests/node/sections has.
node_tests = $(shell sed -n 's/^$(1) //p' tests/node/sections)
# The sections of check-long.
SECTIONS ?= sid slow breadth resize allocator ledger fuzz soak crash emulated laws scale linux libvirt vfio release browser api placement arm64
# How often the section "laws" tries each property, and those two that act out a node's whole day in every case.
CASES    ?= 20000
DAYS     ?= 4000
# The sources that the section "mutants" changes.
MUTATED  ?= crates/decide/src/**/*.rs
# How often a container is registered and deregistered in the test of that.
CYCLES  ?= 50
# The daemon is killed at one of so many steps in the tests of that.
EVERY   ?= 5
# Real programs of the folder BIN that node tests find in /job/real (docs/real.md).
REAL_PROGRAMS ?=
# Another folder of recorded cases for `make vectors`.
DIR     ?=
# How long `make fuzz` runs each target, and which targets (all).
FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?=

VERSION  := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# What the packages hold; nothing else of the workspace is built for them. Those of the cluster are built apart: what they ask of crates that both use
# is none of the daemon's.
PROGRAMS := --bins -p steliad -p steliad-quiet -p steliactl -p stelia-runner -p stelia-device-plugin
CLUSTER  := --bins -p stelia-publish -p stelia-cluster -p stelia-placement
# Each a .deb, an .rpm and an SBOM.
CLUSTER_PACKAGES := stelia-publish stelia-cluster stelia-placement
PACKAGES := steliad $(CLUSTER_PACKAGES)
# Where what is built for an architecture is.
out_of   = target$(patsubst %,/%,$(filter-out $(HOST_ARCH),$(1)))
OUT      := $(call out_of,$(ARCH))
IMAGES   := stelia-runner stelia-publish stelia-placement
RUNNER_IMAGE := $(OUT)/image/stelia-runner.tar
# What `systemd-analyze security` may say of each unit, times ten.
EXPOSURE := steliad=18 steliad-quiet=13 steliad-device-plugin=13 steliad-metrics=11 steliad-try-runtime@=11 stelia-publish=13 stelia-placement=13
# Features of tests and benchmarks that `make test` leaves out; lint looks at them too.
RARE     := stelia-simulator/browser,stelia-placement/real,stelia-placement/testing
# Relative relocations packed: unpacked they are half a megabyte that every start reads and that stays resident.
# In packages that are optimised no path of this folder is in a program: what the device plugin generates has one.
STATIC   := RUSTFLAGS="-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs$(if $(FAST),, --remap-path-prefix=$(CURDIR)=.)"
# The linker: for arm64 always this script, for x86-64 on an arm64 host Debian's cross compiler.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER ?= $(CURDIR)/packaging/tools/arm64-linker
ifeq ($(CROSS),amd64)
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER ?= $(call gnu,amd64)gcc
endif
# How the workspace's tests are compiled: as a whole, and so that the packages of FAST=1 share what is compiled for them.
TESTING  := CARGO_INCREMENTAL=0 $(STATIC) $(CARGO)
WHOLE    := --locked --workspace --profile fast --target
# The target of tests that run here, whatever ARCH is.
NATIVE   := $(if $(CROSS),$(HOST),$(TARGET))
# Many of the unit tests wait, for a timer or a process, and all that run on a model of a node write thousands of small files: to
# memory, where there is enough and programs run from there.
TEST_THREADS ?= $(shell echo $$(($$(nproc) * 2)))
SCRATCH  = $(shell [ "$$(df -k --output=avail /dev/shm 2> /dev/null | tail -n 1)" -ge 1000000 ] 2> /dev/null \
  && ! findmnt -n -o OPTIONS /dev/shm | grep -q noexec && echo /dev/shm || echo "$${TMPDIR:-/tmp}")
DEB_DIR  := $(OUT)/debian
# The node's package, and those of the cluster: each kind is built when it is asked for.
DEB_NODE := $(DEB_DIR)/.packaged-node-$(PROFILE)
DEB_CLUSTER := $(DEB_DIR)/.packaged-cluster-$(CLUSTER_PROFILE)
DEB_DONE := $(DEB_NODE) $(DEB_CLUSTER)
# What cargo compiled for them, as it says itself.
BUILT    := $(DEB_DIR)/.built-$(PROFILE)
BUILT_CLUSTER := $(DEB_DIR)/.built-cluster-$(PROFILE)
# The programs as they were packaged: a later build of the tests writes others to the same place in cargo's folder.
PACKAGED := $(DEB_DIR)/programs/$(TARGET)
# The folder of a package's Cargo.toml, how its programs are built, and its newest files.
folder_of = $(if $(filter steliad,$(1)),.,cluster/$(patsubst cluster,cli,$(1:stelia-%=%)))
profile_of = $(if $(filter steliad,$(1)),$(PROFILE),$(CLUSTER_PROFILE))
# A boot sector, from assembler.
sector = $(CC) -m32 -c -o $(2).o $(1) && ld -m elf_i386 -Ttext 0x7c00 -e _start --oformat binary -o $(2) $(2).o && rm $(2).o
# A guest for arm64, from assembler.
guest_arm64 = $(call gnu,arm64)gcc -c -o $(2).o $(1) && $(call gnu,arm64)objcopy -O binary $(2).o $(2) && rm $(2).o
STRIP    := $(if $(CROSS),$(call gnu,$(CROSS)))strip
newest_deb = "$$(ls -1t $(DEB_DIR)/$(1)_*.deb | head -n 1)"
newest_rpm = "$$(ls -1t $(RPM_DIR)/$(1)-[0-9]*.rpm | head -n 1)"
DEB_FROM := Cargo.toml Cargo.lock $(wildcard build.rs) $(shell find src crates cluster testing systemd-units packaging dbus-interfaces docs -type f 2> /dev/null)
RPM_DIR  := $(OUT)/rpm
RPM_DONE := $(RPM_DIR)/.done-$(PROFILE)
RPM_TREE := $(RPM_DIR)/tree
# A release's files, and the time that is written into them: the commit's, not that of the build.
DIST     := $(OUT)/dist
# Files of releases for different architectures have different names, these too, so that they can be in one folder.
SUMS     := SHA256SUMS-$(ARCH)
# The checksums of a folder's files.
checksums = cd $(1) && rm -f $(2) && sha256sum -- * > ../$(2) && mv ../$(2) . && cat $(2)
# What images say of their sources: the commit, and the address if there is one (SOURCE=https://...).
export STELIA_REVISION := $(or $(REVISION),$(shell git rev-parse HEAD 2> /dev/null))
export STELIA_SOURCE := $(SOURCE)
EPOCH    := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2> /dev/null || stat -c %Y CHANGELOG.md))
SELINUX  := target/selinux
TOOLS    := target/tools
NODE_JOB := target/node-test
# Where the section "release" builds a release once more.
AGAIN    := target/again
# Our tools work for seconds: what they are built with asks for minutes of optimising. C is what compresses.
INSTALL  := CFLAGS=-O2 CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
            CARGO_TARGET_DIR=$(TOOLS)/build $(CARGO) install --quiet --locked
# An .rpm has three hashes of its payload. Not optimised, they take minutes for the packages of FAST=1.
HASHING  := $(patsubst %,--config profile.release.package.%.opt-level=2,rpm sha1 sha2 sha3 keccak digest block-buffer)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: cross-tools cross-check image-of-commit check-quick check-long node-test-quick long-sid long-slow long-breadth long-resize long-allocator long-ledger long-fuzz long-soak long-crash long-emulated long-laws long-scale long-release long-linux long-libvirt long-vfio long-browser long-api long-placement long-arm64 long-mutants long-real help setup build deb image rpm selinux sbom images release dist install fmt lint deny test vectors bench bench-scale bench-peers bench-placement bench-publishers sim-placement api-test package-test package-lint fuzz fuzz-check fuzz-short node-test soak check try demo clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: cross-tools ## install the host packages that building and testing need (ARCH=arm64: and those that build for it)
	@packaging/tools/host-packages

cross-tools:
	$(if $(CROSS),@packaging/tools/cross-tools $(CROSS))

build: ## the programs, for trying
	$(CARGO) build --locked --workspace

deb: $(if $(filter steliad,$(PACKAGE)),$(DEB_NODE),$(DEB_CLUSTER)) ## the node's Debian package in target/debian (PACKAGE=stelia-publish: the cluster's; ARCH=arm64: for it, in target/arm64/debian; FAST=1: built sooner, not optimised)
	@ls -1 $(if $(filter steliad,$(PACKAGE)),$(DEB_DIR)/steliad_*.deb,$(CLUSTER_PACKAGES:%=$(DEB_DIR)/%_*.deb))

# The binaries are static, so the package runs on any libc.
$(DEB_NODE): $(DEB_FROM) | $(TOOLS)/bin/cargo-deb cross-tools
	@mkdir -p $(DEB_DIR) && rm -f $(DEB_DIR)/.packaged-node-* $(DEB_DIR)/.built-$(PROFILE) $(DEB_DIR)/steliad_*.deb
	$(STATIC) $(CARGO) build --locked $(PROGRAMS) --profile $(PROFILE) --target $(TARGET) --message-format=json-render-diagnostics > $(BUILT)
	@mkdir -p $(PACKAGED)/$(PROFILE)
	@cp $(addprefix target/$(TARGET)/$(PROFILE)/,steliad steliad-quiet steliactl stelia-runner stelia-device-plugin) $(PACKAGED)/$(PROFILE)/
	@$(call debian,steliad)
	@echo $(EPOCH) > $@

$(DEB_CLUSTER): $(DEB_FROM) | $(TOOLS)/bin/cargo-deb cross-tools
	@mkdir -p $(DEB_DIR) && rm -f $(DEB_DIR)/.packaged-cluster-* $(BUILT_CLUSTER) $(CLUSTER_PACKAGES:%=$(DEB_DIR)/%_*.deb)
	$(STATIC) $(CARGO) build --locked $(CLUSTER) --profile $(CLUSTER_PROFILE) --target $(TARGET) --message-format=json-render-diagnostics > $(BUILT_CLUSTER)
	@mkdir -p $(PACKAGED)/$(CLUSTER_PROFILE)
	@cp $(addprefix target/$(TARGET)/$(CLUSTER_PROFILE)/,$(CLUSTER_PACKAGES)) $(PACKAGED)/$(CLUSTER_PROFILE)/
	@$(call debian,$(CLUSTER_PACKAGES))
	@echo $(EPOCH) > $@

# The named packages, of programs that are built.
define debian
export SOURCE_DATE_EPOCH=$(EPOCH) PATH="$(abspath $(TOOLS))/bin:$$PATH"; $(foreach package,$(1),$(CARGO) deb -p $(package) --quiet --locked \
	  --no-build --no-strip $(if $(FAST),--fast) --profile $(call profile_of,$(package)) --target $(TARGET) --output $(DEB_DIR)/ &&) \
	  packaging/tools/md5sums $(foreach package,$(1),$(DEB_DIR)/$(package)_*.deb)
endef

# The archive of an image.
oci_image = packaging/tools/oci-image $(PACKAGED)/$(if $(filter stelia-runner,$(1)),$(PROFILE),$(CLUSTER_PROFILE))/$(1) $(VERSION) $(OUT)/image/$(1).tar

# All are made anew: their labels have the commit, which may be another one though no program has changed.
image: $(DEB_DONE) ## OCI image archives in target/image: one holds only the runner, one only the publisher, one only the placement
	@mkdir -p $(OUT)/image
	@$(foreach image,$(IMAGES),$(call oci_image,$(image)) &&) true

images: ## the same in target/images, each archive for amd64 and arm64: an index with an image of both; and their checksums
	@for arch in amd64 arm64; do $(MAKE) --no-print-directory image-of-commit ARCH=$$arch || exit; done
	@rm -rf target/images && mkdir -p target/images
	@for image in $(IMAGES); do \
	  packaging/tools/oci-image --index $(foreach arch,amd64 arm64,$(call out_of,$(arch))/image/$$image.tar) target/images/$$image-$(VERSION).tar || exit; \
	done
	@$(call checksums,target/images,SHA256SUMS-images)

image-of-commit:
	@$(call of_commit,$(DEB_DONE))
	@$(MAKE) --no-print-directory image

# For the demo, which needs none of the cluster's.
$(RUNNER_IMAGE): $(DEB_NODE)
	@mkdir -p $(dir $@)
	@$(call oci_image,stelia-runner)

sbom: $(DEB_DONE) ## what the packaged programs are made of, crate by crate, in target/dist (CycloneDX), one document a package
	@mkdir -p $(DIST)
	@export SOURCE_DATE_EPOCH=$(EPOCH) CARGO=$(CARGO); $(foreach package,$(PACKAGES),packaging/tools/sbom $(package) $(VERSION) $(TARGET) \
	  $(PACKAGED)/$(call profile_of,$(package)) $(DIST)/$(package)-$(VERSION)-$(ARCH).cdx.json &&) true

# What was packaged before a commit has an earlier one's time.
of_commit = [ "$$(cat $(1) 2> /dev/null | sort -u)" = $(EPOCH) ] || rm -f $(1)

release: ## a release's files in target/dist: packages, images, SBOMs and their checksums (ARCH=arm64: in target/arm64/dist, with other names)
	@$(call of_commit,$(DEB_DONE) $(RPM_DONE))
	@$(MAKE) --no-print-directory dist

dist: $(DEB_DONE) rpm image
	@rm -rf $(DIST)
	@$(MAKE) --no-print-directory sbom > /dev/null
	@cp $(foreach package,$(PACKAGES),$(call newest_deb,$(package)) $(call newest_rpm,$(package))) $(DIST)/
	@for image in $(IMAGES); do cp $(OUT)/image/$$image.tar $(DIST)/$$image-$(VERSION)-$(ARCH).tar || exit; done
	@$(call checksums,$(DIST),$(SUMS))

$(TOOLS)/bin/cargo-deb:
	$(INSTALL) --root $(TOOLS) cargo-deb

rpm: $(RPM_DONE) ## the .rpms in target/rpm, of the same binaries as the Debian packages (FAST=1 too)
	@ls -1 $(RPM_DIR)/*.rpm

# From a copy: cargo-generate-rpm lowers the time of a file to SOURCE_DATE_EPOCH and raises none, and everything copied is newer.
$(RPM_DONE): $(DEB_DONE) $(SELINUX)/steliad.pp.bz2 LICENSE | $(TOOLS)/bin/cargo-generate-rpm
	@mkdir -p $(RPM_DIR) && rm -rf $(RPM_DIR)/tree $(RPM_DIR)/.done-* $(RPM_DIR)/*.rpm
	@mkdir -p $(RPM_TREE)/target/rpm/man $(RPM_TREE)/$(SELINUX) $(foreach package,$(CLUSTER_PACKAGES),$(RPM_TREE)/$(call folder_of,$(package)))
	@mkdir -p $(foreach profile,$(sort $(PROFILE) $(CLUSTER_PROFILE)),$(RPM_TREE)/target/$(TARGET)/$(profile))
	@cp -r Cargo.toml LICENSE systemd-units packaging dbus-interfaces docs $(RPM_TREE)/
	@for crate in $(foreach package,$(CLUSTER_PACKAGES),$(call folder_of,$(package))); do cp $$crate/Cargo.toml $(RPM_TREE)/$$crate/ || exit; done
	@cp $(SELINUX)/steliad.pp.bz2 $(RPM_TREE)/$(SELINUX)/
	@cd $(PACKAGED)/$(PROFILE) && cp steliad steliad-quiet steliactl stelia-runner stelia-device-plugin $(CURDIR)/$(RPM_TREE)/target/$(TARGET)/$(PROFILE)/
	@cd $(PACKAGED)/$(CLUSTER_PROFILE) && cp stelia-publish stelia-cluster stelia-placement $(CURDIR)/$(RPM_TREE)/target/$(TARGET)/$(CLUSTER_PROFILE)/
	@for package in $(PACKAGES); do \
	  pages=$(RPM_TREE)/target/rpm/man; [ $$package = steliad ] || pages=$$pages/$$package; mkdir -p $$pages; \
	  dpkg-deb --fsys-tarfile $(DEB_DIR)/$${package}_*.deb | tar -xm -C $$pages --strip-components=4 ./usr/share/man || exit; \
	done
	@cd $(RPM_TREE) && export SOURCE_DATE_EPOCH=$(EPOCH) PATH="$(abspath $(TOOLS))/bin:$$PATH"; $(foreach package,$(PACKAGES),$(CARGO) generate-rpm \
	  $(if $(filter steliad,$(package)),,-p $(call folder_of,$(package))) $(if $(FAST),--payload-compress none) --profile $(call profile_of,$(package)) --target $(TARGET) \
	  --output $(CURDIR)/$(RPM_DIR)/ &&) true
	@rm -rf $(RPM_TREE) && echo $(EPOCH) > $@

$(TOOLS)/bin/cargo-generate-rpm:
	$(INSTALL) $(HASHING) --root $(TOOLS) cargo-generate-rpm

selinux: $(SELINUX)/steliad.pp.bz2 ## the SELinux policy module in target/selinux

# Module version 19 is what every libsemanage of the systems with systemd 252 reads, whatever this host's tools write by default.
$(SELINUX)/steliad.pp.bz2: $(wildcard packaging/selinux/steliad.*)
	@mkdir -p $(SELINUX)/module && cp $^ $(SELINUX)/module/
	@$(MAKE) --no-print-directory -C $(SELINUX)/module -f /usr/share/selinux/devel/Makefile NAME=default CHECKMODULE="checkmodule -M -c 19" steliad.pp
	@bzip2 -9 < $(SELINUX)/module/steliad.pp > $@

# Not `deb`: whoever packages this otherwise needs none of its tools. The file list is the .deb's, from Cargo.toml.
install: cross-tools ## what a .deb has, below DESTDIR (PREFIX=/usr, PACKAGE=steliad)
	$(STATIC) $(CARGO) build --locked $(if $(filter steliad,$(PACKAGE)),$(PROGRAMS),--bins -p $(PACKAGE)) --profile $(call profile_of,$(PACKAGE)) --target $(TARGET)
	@$(CARGO) metadata --locked --no-deps --format-version 1 \
	  | packaging/tools/install $(PACKAGE) target/$(TARGET)/$(call profile_of,$(PACKAGE)) "$(DESTDIR)" "$(PREFIX)"

# A whole policy to link the module with, in the tests. It is unpacked, not installed: this host stays without SELinux.
$(SELINUX)/base.pp.bz2:
	@mkdir -p $(SELINUX)/download && rm -f $(SELINUX)/download/*
	@cd $(SELINUX)/download && { apt-get -qq -o APT::Sandbox::User=root download selinux-policy-default 2> /dev/null \
	  || { apt-get -qq update && apt-get -qq -o APT::Sandbox::User=root download selinux-policy-default; }; }
	@dpkg-deb --fsys-tarfile $(SELINUX)/download/*.deb | tar -xO ./usr/share/selinux/default/base.pp.bz2 > $@

fmt: ## format the code
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml

# The workspace is built as a whole everywhere, and not package by package: what two of them use is compiled once, with what both ask of it.
lint: deny ## formatting, clippy and rustdoc (warnings are errors), what the dependencies may be, the units' exposure
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	@$(CARGO) metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml > /dev/null
	$(CARGO) clippy --locked --workspace --features $(RARE) --all-targets -- -D warnings
	$(CARGO) clippy --locked --workspace --features $(RARE) --test node --test packaging --test real -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --locked --workspace --no-deps
	@for unit in $(EXPOSURE); do \
	  report=$$(systemd-analyze security --offline=true --no-pager --threshold=$${unit#*=} systemd-units/$${unit%=*}.service) || \
	  { echo "$$report"; exit 1; }; echo "$$report" | tail -n 1; \
	done

# Compiled and not linked, so that it takes a minute. What is compiled for the host is that of the tests.
# OPTIONAL=1, for `make check`: a host that cannot install the tools for the other architecture does not check it, and says so, in the table too.
cross-check: OTHER = $(if $(filter arm64,$(HOST_ARCH)),amd64,arm64)
cross-check: ## every crate compiles for the other of amd64 and arm64, without a warning of clippy
	@why=$$(packaging/tools/cross-tools $(OTHER) 2>&1) || { echo "$$why" >&2; [ -n "$(OPTIONAL)" ] || exit 1; \
	  echo "cross-check: NOT RUN" >&2; echo "$$why" | sed -n 's/^cross-tools: //p' > "$${NOT_RUN:-/dev/null}"; exit 0; }; \
	echo '$(CARGO) clippy $(WHOLE) $(call triple,$(OTHER))'; CARGO_INCREMENTAL=0 $(CARGO) clippy $(WHOLE) $(call triple,$(OTHER)) -- -D warnings

# Vulnerabilities are looked up on the network, so that is left to `cargo deny check advisories`.
deny: | $(TOOLS)/bin/cargo-deny
	$(TOOLS)/bin/cargo-deny --locked --log-level error check bans licenses sources

$(TOOLS)/bin/cargo-mutants:
	$(INSTALL) --root $(TOOLS) cargo-mutants

$(TOOLS)/bin/cargo-deny:
	$(INSTALL) --root $(TOOLS) cargo-deny

test: ## unit tests and the integration tests that need no node
	TMPDIR=$(SCRATCH) RUST_TEST_THREADS=$(TEST_THREADS) $(TESTING) test $(WHOLE) $(NATIVE) -- --include-ignored

vectors: ## recorded answers of others' code held against ours (DIR=folder: other cases than tests/data/vectors)
	@STELIA_VECTORS="$(DIR)" $(CARGO) test --quiet --locked --test vectors

bench: ## how long a merge of topology hints and an assignment of CPUs take, beside kubelet's own ways; answers for schedulers; the ledger's sample and ring; the bytes of what is written for schedulers; and a cluster of 10,000 nodes looked at
	$(CARGO) bench --locked --bench merge --bench cpus --bench evaluate
	$(CARGO) bench --locked -p stelia-ledger --bench sample --bench ring
	$(CARGO) bench --locked -p stelia-koordinator --features testing --bench bytes
	$(CARGO) bench --locked --profile $(CLUSTER_PROFILE) -p stelia-cluster --bench ten_thousand

bench-scale: ## what 8 to 512 VMs on one node cost the daemon, held to bars (SIZES="8 64" others, PRINT=1 holds none)
	@$(if $(SIZES),STELIA_SCALE="$(SIZES)") $(if $(PRINT),STELIA_SCALE_PRINT=1) $(CARGO) bench --quiet --locked --bench scale

bench-peers: ## what 512 connected runners cost the daemon's memory, held to bars (PEERS=n others, PRINT=1 holds none)
	@$(if $(PEERS),STELIA_PEERS="$(PEERS)") $(if $(PRINT),STELIA_PEERS_PRINT=1) $(CARGO) bench --quiet --locked -p stelia-simulator --bench peers

sim-placement: ## 10,000 pods placed in a simulated cluster of 200 nodes, with crashes and late objects, and by counting beside it (PODS=n, NODES=n)
	@STELIA_PLACEMENTS=$(or $(PODS),10000) STELIA_PLACEMENT_NODES=$(or $(NODES),200) $(CARGO) test --quiet --locked --profile $(CLUSTER_PROFILE) -p stelia-placement --lib simulated_cluster:: -- --nocapture --test-threads=1

bench-placement: ## what 100 to 10,000 nodes cost whoever places pods on them, held to bars (NODES="100 1000" others, PRINT=1 holds none)
	@$(if $(NODES),STELIA_NODES="$(NODES)") $(if $(PRINT),STELIA_NODES_PRINT=1) $(CARGO) bench --quiet --locked --profile $(CLUSTER_PROFILE) -p stelia-placement --features testing --bench placement --bench service

bench-publishers: ## what 10,000 publishers ask of an API server, and one's memory, held to bars (NODES=n others, PRINT=1 holds none)
	@$(STATIC) $(CARGO) build --quiet --locked -p stelia-publish --profile $(CLUSTER_PROFILE) --target $(NATIVE)
	@$(if $(NODES),STELIA_NODES="$(NODES)") $(if $(PRINT),STELIA_PRINT=1) STELIA_PUBLISH=$(CURDIR)/target/$(NATIVE)/$(CLUSTER_PROFILE)/stelia-publish \
	  $(STATIC) $(CARGO) bench --quiet --locked --profile $(CLUSTER_PROFILE) -p test-apiserver --bench publishers --target $(NATIVE)

api-test: ## publishers against a real API server, built once from Debian's packages
	@packaging/tools/host-packages mmdebstrap openssl
	@tests/api/server build
	@$(STATIC) $(CARGO) build --quiet --locked -p stelia-publish --profile $(CLUSTER_PROFILE) --target $(NATIVE)
	@STELIA_API=$(CURDIR)/target/api STELIA_PUBLISH=$(CURDIR)/target/$(NATIVE)/$(CLUSTER_PROFILE)/stelia-publish \
	  $(CARGO) test --quiet --locked -p test-apiserver --test real -- --test-threads=1 --nocapture

fuzz: setup ## fuzz whatever reads bytes of others, 10 min a target (FUZZ_SECONDS=n, FUZZ_TARGETS=name)
	CARGO=$(CARGO) fuzz/run $(FUZZ_SECONDS) $(FUZZ_TARGETS)

fuzz-check: ## the fuzz targets compile
	$(CARGO) check --locked --manifest-path fuzz/Cargo.toml --target-dir target/fuzz/check

fuzz-short: setup ## the same for 5 s a target
	CARGO=$(CARGO) fuzz/run 5

package-lint: $(DEB_DONE) rpm ## what lintian and rpmlint say of the packages; everything is an error but what is overridden with its reason
	@printf '%s\n' $(DEB_DIR)/*.deb | xargs -P $$(nproc) -n 1 lintian --allow-root --fail-on error,warning
	@report=$$(rpmlint --strict -c packaging/tools/rpmlint.toml $(RPM_DIR)/*.rpm) || \
	  { echo "$$report"; exit 1; }; echo "$$report" | tail -n 1

package-test: package-lint dist $(SELINUX)/base.pp.bz2 ## the .rpm held to the Debian package, the SELinux module asked what it allows, the SBOM held to the build
	STELIA_DEBS=$(DEB_DIR) STELIA_RPMS=$(RPM_DIR) STELIA_SELINUX=$(SELINUX) STELIA_DIST=$(DIST) \
	STELIA_BIN=$(PACKAGED)/$(PROFILE) STELIA_BUILT=$(BUILT) \
	STELIA_CLUSTER_BIN=$(PACKAGED)/$(CLUSTER_PROFILE) STELIA_CLUSTER_BUILT=$(BUILT_CLUSTER) \
	$(TESTING) test $(WHOLE) $(NATIVE) --test packaging

node-test: $(DEB_DONE) ## the tests in the test node (FILTER="names" for some of them, IMAGE=sid or trixie-arm64, VFIO=1, NODE_GUEST=tcg)
	@rm -rf $(NODE_JOB) && mkdir -p $(NODE_JOB)
	@$(TESTING) build $(WHOLE) $(TARGET) --test node --bins --message-format=json-render-diagnostics > $(NODE_JOB)/.built
	@cp "$$(packaging/tools/test-binary node < $(NODE_JOB)/.built)" $(NODE_JOB)/node-tests
	@for program in steliad-failpoints stelia-simulate test-apiserver kubelet-devices; do \
	  $(STRIP) -o $(NODE_JOB)/$$program "$$(packaging/tools/test-binary $$program < $(NODE_JOB)/.built)" || exit; \
	done
	@cp "$$(packaging/tools/test-binary test-vmm < $(NODE_JOB)/.built)" $(NODE_JOB)/test-vmm
	@for package in stelia-publish stelia-placement; do cp $$(ls -1t $(DEB_DIR)/$${package}_*.deb | head -n 1) $(NODE_JOB)/$$package.deb || exit; done
	@cp tests/node/libvirt/launcher $(NODE_JOB)/libvirt-launcher
	@$(if $(REAL_PROGRAMS),mkdir $(NODE_JOB)/real && cp -rL $(REAL_PROGRAMS:%="$(BIN)/%") $(NODE_JOB)/real/)
	@mkdir $(NODE_JOB)/python && cp -r /usr/lib/python3/dist-packages/jeepney $(NODE_JOB)/python/
	@cp docs/examples/runner.py $(NODE_JOB)/ && GOARCH=$(ARCH) packaging/tools/example-runner $(NODE_JOB)/runner-go
	@cp tests/node/run.sh tests/node/seconds tests/node/sections packaging/kubernetes/*.yaml docs/cookbook.md docs/first-vm.md $(NODE_JOB)/
ifeq ($(ARCH),arm64)
	@$(call guest_arm64,tests/node/idle-arm64.S,$(NODE_JOB)/idle-arm64.bin)
else
	@$(call sector,tests/node/first_vm/boot.S,$(NODE_JOB)/first-vm-boot.bin)
	@$(call sector,tests/node/first_vm/button.S,$(NODE_JOB)/first-vm-button.bin)
endif
	@FILTER="$(FILTER)" IMAGE=$(IMAGE) VFIO=$(VFIO) CYCLES=$(CYCLES) EVERY=$(EVERY) tests/node/suite $(NODE_JOB)

soak: ## 500 cycles of register and deregister in the test node
	$(MAKE) node-test FILTER="$(call node_tests,soak)" CYCLES=500

check: ## setup, lint, cross-check, test, package-test and node-test, and how long each took; the packages are those of FAST=1
	@packaging/tools/timed "$(MAKE) FAST=1 OPTIONAL=1" setup lint cross-check test package-test node-test

check-quick: ## lint, the fuzz targets compiled, unit tests, packages, and the node tests that a change is most likely to break
	@packaging/tools/timed "$(MAKE) FAST=1 OPTIONAL=1" setup lint fuzz-check test package-test node-test-quick

node-test-quick:
	@$(MAKE) --no-print-directory node-test FILTER="$(call node_tests,quick)"

# What is too long for every change. A section is seen whole, by hand, when what it is about changes.
check-long: ## what is too long for every change, by section (SECTIONS="sid slow breadth resize allocator ledger fuzz soak crash emulated laws scale linux libvirt vfio release browser api placement arm64"), and SECTIONS=mutants, SECTIONS=real BIN=DIR
	@packaging/tools/timed $(MAKE) $(SECTIONS:%=long-%)

long-sid: # the next Debian: every node test that runs there, and the demo
	@$(MAKE) --no-print-directory node-test IMAGE=sid
	@$(MAKE) --no-print-directory demo IMAGE=sid

long-slow: # node tests of half a minute and more; eight VMs under noise and floats on a node of 16 CPUs; how long a start takes beside an attacking pod
	@$(MAKE) --no-print-directory node-test FILTER="$(call node_tests,slow)"
	@NODE_CPUS=16 $(MAKE) --no-print-directory node-test
	@$(MAKE) --no-print-directory node-test FILTER="$(call node_tests,fair)"

long-breadth: # further node tests of subjects of which `make check` has others, and every test of bookworm
	@$(MAKE) --no-print-directory node-test FILTER="$(call node_tests,breadth)"
	@$(MAKE) --no-print-directory node-test IMAGE=bookworm

long-resize: # VMs that grow and shrink while their guests run: ten times, with a guest agent, beside each other, with the daemon killed
	@$(MAKE) --no-print-directory node-test FILTER="$(call node_tests,resize)"

long-allocator: # CPUs that steliad chooses: classes, moves of a running VM, the take-over from kubelet
	@$(MAKE) --no-print-directory node-test FILTER="$(call node_tests,allocator)"

long-ledger: # the ledger through restarts, plugged vCPUs, sleep, a full disk and changed bytes
	@$(MAKE) --no-print-directory node-test FILTER="$(call node_tests,ledger)"

long-fuzz: fuzz-short # each fuzz target for 5 s

long-soak: soak

long-crash: # the daemon killed between any two steps of register, attach and deregister
	@$(MAKE) --no-print-directory node-test EVERY=1 FILTER="$(call node_tests,crash)"

long-emulated: # every guest emulated, as where the node has no KVM
	@NODE_GUEST=tcg $(MAKE) --no-print-directory node-test EVERY=1 FILTER="$(call node_tests,emulated)"

# A property that rejects some of its cases rejects as many times more of them. Optimised: so many cases outweigh the build.
long-laws: export PROPTEST_MAX_GLOBAL_REJECTS = 1000000
long-laws: # every property of the library, with many more cases than the tests take
	@PROPTEST_CASES=$(CASES) $(CARGO) test --quiet --locked --release --workspace --lib -- --skip engine::model_tests --skip laws
	@PROPTEST_CASES=$(DAYS) $(CARGO) test --quiet --locked --release -p steliad -p stelia-testnode --lib -- laws

long-scale: # as many instances as a node of 32 CPUs carries: the daemon killed, systemd standing still
	@NODE_CPUS=32 $(MAKE) --no-print-directory node-test

long-linux: # a Linux from the disk of the examples that the packages install: its network, its share
	@$(MAKE) --no-print-directory node-test FILTER="$(call node_tests,linux)"

long-libvirt: # what libvirt's verbs do to an adopted VM (docs/adopt.md): in the slice, and in place
	@$(MAKE) --no-print-directory node-test FILTER="$(call node_tests,libvirt)"
	@$(MAKE) --no-print-directory node-test IMAGE=sid FILTER="$(call node_tests,libvirt)"

long-vfio: # devices that VMs have by VFIO, on a node with an emulated IOMMU: their NUMA nodes, memory and interrupts
	@$(MAKE) --no-print-directory node-test VFIO=1

# The tracked files as they are, in another folder and with nothing that was built before.
long-release: release # a release built once more: the same bytes
	@rm -rf $(AGAIN) && mkdir -p $(AGAIN)/target && git ls-files -z | tar --null -T - -c | tar -x -C $(AGAIN)
	@ln -sfn "$(abspath $(TOOLS))" $(AGAIN)/target/tools
	@$(MAKE) --no-print-directory -C $(AGAIN) release TOOLS=target/tools SOURCE_DATE_EPOCH=$(EPOCH) > $(AGAIN)/log 2>&1 || { tail -n 30 $(AGAIN)/log >&2; exit 1; }
	diff $(DIST)/$(SUMS) $(AGAIN)/$(DIST)/$(SUMS) && rm -rf $(AGAIN)

long-browser: # the ledger's report in a browser: nothing overlaps, nothing is complained of
	@packaging/tools/host-packages chromium
	@$(CARGO) test --quiet --locked -p stelia-simulator --features browser --test simulate -- browser::

# The tests of the changed crate alone judge: the engine's, which take minutes, notice more.
long-mutants: | $(TOOLS)/bin/cargo-mutants # each small change of decisions (MUTATED="crates/decide/src/home/*.rs") that no test of theirs notices, in target/mutants.out: hours
	@$(TOOLS)/bin/cargo-mutants mutants --package stelia-decide --file '$(MUTATED)' --profile fast --output target --no-shuffle --colors never

long-real: # this tree beside the real programs in the folder BIN, as docs/real.md says
	@CARGO="$(CARGO)" tests/real/run "$(BIN)"

long-placement: sim-placement # 10,000 pods placed in a simulated cluster: none refused, none claimed twice, nothing leaked

long-api: api-test # publishers against a real API server, through its restarts and the loss of its etcd

long-arm64: images # packages and images for arm64, and the packaging tests on them; node tests and the demo on an emulated node of arm64
	@$(MAKE) --no-print-directory package-test ARCH=arm64
	@$(MAKE) --no-print-directory node-test IMAGE=trixie-arm64 ARCH=arm64
	@$(MAKE) --no-print-directory demo IMAGE=trixie-arm64 ARCH=arm64

try: ## the daemon on a node in memory, and eleven commands of steliactl with their output; needs no root, VM or kubelet
	$(CARGO) build --locked -p stelia-simulator
	@testing/simulator/try target/debug

demo: $(DEB_NODE) $(RUNNER_IMAGE) ## VMs in pods, seen from outside, in the test node (IMAGE=sid or trixie-arm64; FAST=: with the optimised package)
	@rm -rf target/demo && cp -r tests/vm/jobs/demo target/demo
	@cp $(RUNNER_IMAGE) packaging/kubernetes/vm-emulated.yaml target/demo/
	@$(if $(filter arm64,$(ARCH)),$(call guest_arm64,tests/vm/jobs/demo/pause-arm64.S,target/demo/pause.bin),$(call sector,tests/vm/jobs/demo/pause.S,target/demo/pause.bin))
	tests/vm/node run --image $(IMAGE) target/demo

clean: ## remove what was built (not the tools, not the node's images)
	rm -rf target/debug target/release target/cluster target/fast target/*-unknown-linux-* target/amd64 target/arm64 target/images target/fuzz/build $(DEB_DIR) $(RPM_DIR) $(SELINUX) $(DIST) $(NODE_JOB) $(AGAIN)
