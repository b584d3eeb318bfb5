//! The Debian package: packed as `make package` does, installed by dpkg into a folder, upgraded, removed and purged
//! there, with a stand-in for systemctl that writes down what it is told.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::skip::skipped;

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// `PATH` with the tools that set-up installs.
fn tools() -> String {
    format!("{}:{}", file(".cache/tools/bin").display(), std::env::var("PATH").unwrap())
}

/// Whether the tool that lists materials is here; told on standard error if not.
fn lists_materials() -> bool {
    let is_here = Command::new("cargo-cyclonedx").arg("--version").env("PATH", tools()).output().is_ok();
    if !is_here {
        skipped("cargo-cyclonedx is not here; scripts/setup.sh package installs it");
    }
    is_here
}

/// The package of the binary that tests run; `None`, told on standard error, where it cannot be packed.
fn packed(out: &Path) -> Option<PathBuf> {
    for tool in ["dpkg-deb", "dpkg-shlibdeps"] {
        if Command::new(tool).arg("--version").output().is_err() {
            skipped(&format!("{tool} is not here; scripts/setup.sh package installs what packs"));
            return None;
        }
    }
    if !lists_materials() {
        return None;
    }
    let mut pack = Command::new(file("scripts/package.sh"));
    pack.env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    pack.args(["--binary", env!("CARGO_BIN_EXE_evergraph"), "--out"]).arg(out);
    Some(PathBuf::from(said(&mut pack).trim()))
}

/// A root for dpkg, with a systemd that runs.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "run/systemd/system", "stand-in"] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        fs::write(machine.path("var/lib/dpkg/status"), "").unwrap();
        let line = format!("#!/bin/sh\necho \"$@\" >>{}\n", machine.path("told").display());
        fs::write(machine.path("stand-in/systemctl"), line).unwrap();
        fs::set_permissions(machine.path("stand-in/systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
        machine
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.0.path().join(inside)
    }

    /// Runs dpkg; what systemctl was told.
    fn dpkg(&self, arguments: &[&str]) -> Vec<String> {
        let _ = fs::remove_file(self.path("told"));
        let path = format!("{}:{}", self.path("stand-in").display(), std::env::var("PATH").unwrap());
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.0.path().display())).env("PATH", path);
        // Scripts run outside of the folder, which has no shell. What the package depends on is not in it either.
        dpkg.args(["--force-script-chrootless", "--force-depends", "--force-confold"]);
        // Small images leave documentation out.
        dpkg.args(["--path-include=/usr/share/doc/evergraph/*"]);
        dpkg.arg(format!("--log={}", self.path("dpkg.log").display())).args(arguments);
        said(&mut dpkg);
        let told = fs::read_to_string(self.path("told")).unwrap_or_default();
        told.lines().map(str::to_owned).collect()
    }
}

/// The bill of materials names what Cargo.lock names, with its checksums, all that Cargo.toml asks for, and no folder of
/// this machine.
fn check_materials(bill: &[u8]) {
    let text = std::str::from_utf8(bill).unwrap();
    assert!(!text.contains(env!("CARGO_MANIFEST_DIR")), "it is the same on every machine");
    let bill: Value = serde_json::from_slice(bill).unwrap();
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(bill["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let lock = fs::read_to_string(file("Cargo.lock")).unwrap();
    let components = bill["components"].as_array().unwrap();
    for component in components {
        let of = |key: &str| component[key].as_str().unwrap();
        let entry = format!("name = \"{}\"\nversion = \"{}\"\n", of("name"), of("version"));
        let locked = lock.split("[[package]]\n").find(|package| package.starts_with(&entry));
        let checksum = component["hashes"][0]["content"].as_str().unwrap();
        assert!(locked.is_some_and(|package| package.contains(checksum)), "{entry}");
        assert!(!component["licenses"].as_array().unwrap().is_empty(), "{entry}");
    }
    let manifest = fs::read_to_string(file("Cargo.toml")).unwrap();
    let wanted = manifest.split("\n[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let wanted: Vec<&str> =
        wanted.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).collect();
    assert!(wanted.len() > 20, "{wanted:?}");
    for name in wanted {
        assert!(components.iter().any(|component| component["name"] == name), "{name}");
    }
}

#[test]
fn the_materials_are_the_same_in_every_folder() {
    if !lists_materials() {
        return;
    }
    let machine = tempfile::tempdir().unwrap();
    let listed = |folder: &str| {
        let checkout = machine.path().join(folder);
        fs::create_dir_all(checkout.join("scripts")).unwrap();
        for name in ["Cargo.toml", "Cargo.lock", "scripts/sbom.sh"] {
            fs::copy(file(name), checkout.join(name)).unwrap();
        }
        for name in ["src", "benches", "tests"] {
            std::os::unix::fs::symlink(file(name), checkout.join(name)).unwrap();
        }
        let out = checkout.join("sbom.json");
        said(Command::new(checkout.join("scripts/sbom.sh")).arg(&out).env("PATH", tools()));
        fs::read_to_string(out).unwrap()
    };
    // Cargo names a package by its folder alone where that has the package's name.
    let (same, other) = (listed("evergraph"), listed("checkout"));
    assert!(same.contains("path+file:///evergraph#evergraph@"), "{same:.300}");
    assert!(same == other, "the folder of the sources shows");
}

#[test]
fn the_package_is_installed_upgraded_removed_and_purged() {
    let folder = tempfile::tempdir().unwrap();
    let Some(package) = packed(folder.path()) else { return };
    let field = |name: &str| said(Command::new("dpkg-deb").arg("--field").arg(&package).arg(name));
    assert_eq!(field("Package").trim(), "evergraph");
    assert_eq!(field("Version").trim(), env!("CARGO_PKG_VERSION"));
    let depends = field("Depends");
    assert!(depends.contains("libc6 (>= ") && depends.contains("libssl"), "{depends}");
    let listed = said(Command::new("dpkg-deb").arg("--contents").arg(&package));
    assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");

    if !rustix::process::geteuid().is_root() {
        return skipped("dpkg installs as root only: the package was packed and not installed");
    }
    let (machine, package) = (Machine::new(), package.to_str().unwrap());
    let first = ["daemon-reload", "enable evergraph.service", "start --no-block evergraph.service"];
    assert_eq!(machine.dpkg(&["--install", package]), first);
    let unit = fs::read_to_string(machine.path("usr/lib/systemd/system/evergraph.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<&str> = start.split(' ').collect();
    let [binary, "serve", "--config", settings] = words[..] else { panic!("{start}") };
    let (binary, settings) = (machine.path(&binary[1..]), machine.path(&settings[1..]));
    assert_eq!(fs::metadata(&binary).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(said(Command::new(&binary).arg("--version")).split(' ').next(), Some("evergraph"));
    let mut check = Command::new(&binary);
    check.args(["check", "--listen", "127.0.0.1:0", "--config"]).arg(&settings);
    said(check.arg("--data").arg(machine.path("var/lib/evergraph")));
    for part in [
        "usr/share/bash-completion/completions/evergraph",
        "usr/share/zsh/vendor-completions/_evergraph",
        "usr/share/fish/vendor_completions.d/evergraph.fish",
        "usr/share/evergraph/alerts.yml",
        "usr/share/evergraph/dashboards/overview.json",
        "usr/share/doc/evergraph/docs/operate.md",
        "usr/share/doc/evergraph/docs/runbook/EvergraphLearnerLagging.md",
        "usr/share/doc/evergraph/copyright",
        "usr/share/doc/evergraph/secrets.conf",
    ] {
        assert!(fs::metadata(machine.path(part)).unwrap().len() > 0, "{part}");
    }

    let copyright = fs::read_to_string(machine.path("usr/share/doc/evergraph/copyright")).unwrap();
    for name in ["preact", "htm", "uPlot", "Jason Miller", "Leon Sorokin", "MIT License", "Apache License"] {
        assert!(copyright.contains(name), "{name} is in the binary and not in the copyright");
    }
    check_materials(&fs::read(machine.path("usr/share/doc/evergraph/sbom.cdx.json")).unwrap());

    let mine = "[output]\nlevel = \"warn\"\n";
    fs::write(&settings, mine).unwrap();
    let again = ["daemon-reload", "try-restart --no-block evergraph.service"];
    assert_eq!(machine.dpkg(&["--install", package]), again);
    assert_eq!(fs::read_to_string(&settings).unwrap(), mine, "settings are their owner's");
    fs::create_dir_all(machine.path("var/lib/evergraph/log")).unwrap();
    let told = machine.dpkg(&["--remove", "evergraph"]);
    assert_eq!(told, ["disable --now evergraph.service", "daemon-reload"]);
    assert!(!binary.exists() && settings.exists());
    assert_eq!(machine.dpkg(&["--install", package]), first, "it comes back as it was");
    machine.dpkg(&["--remove", "evergraph"]);
    machine.dpkg(&["--purge", "evergraph"]);
    assert!(!settings.exists());
    assert!(machine.path("var/lib/evergraph/log").exists(), "events are never removed");
}
