//! A network namespace of a test's own, with two links to this one: one for requests, and one that the test cuts. A cut
//! link drops what a program there sends, and it is not told: as between machines whose network has failed.
//!
//! Where there can be no namespaces (they take root, and `ip`), the test is skipped loudly.

use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::skip::skipped;

/// The namespace; removed when dropped.
pub struct Network {
    name: String,
    /// The first three numbers of its addresses, and what is below the last.
    prefix: String,
    below: u8,
}

/// The link for requests and the one that is cut: its name, and the last numbers of its two addresses, here and there.
const LINKS: [(&str, u8, u8); 2] = [("ask", 1, 2), ("cut", 5, 6)];

impl Network {
    /// A new one.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let [here, number] = [std::process::id() as u8, COUNT.fetch_add(1, Ordering::Relaxed)];
        let name = format!("eg-{}-{number}", std::process::id());
        // RFC 2544 keeps these addresses for tests of networks; other test processes have others of them.
        let network = Self { name, prefix: format!("198.18.{here}"), below: number * 8 };
        if let Err(why) = network.build() {
            skipped(&format!("needs network namespaces: {why}"));
            return None;
        }
        Some(network)
    }

    fn build(&self) -> Result<(), String> {
        remove_left();
        ip(&["netns", "add", &self.name])?;
        ip(&["netns", "exec", &self.name, "true"])?;
        self.there(&["link", "set", "lo", "up"])?;
        for (link, here, there) in LINKS {
            let (ours, address) = (self.link(link), |last| format!("{}/30", self.address(last)));
            ip(&["link", "add", &ours, "type", "veth", "peer", "name", link, "netns", &self.name])?;
            ip(&["address", "add", &address(here), "dev", &ours])?;
            ip(&["link", "set", &ours, "up"])?;
            self.there(&["address", "add", &address(there), "dev", link])?;
            self.there(&["link", "set", link, "up"])?;
        }
        Ok(())
    }

    /// What a program is started behind, to run there.
    pub fn wrapper(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].map(str::to_owned).to_vec()
    }

    /// Where a program there listens for requests from here.
    pub fn asked(&self) -> String {
        self.address(LINKS[0].2)
    }

    /// Where a program here listens on the link that is cut.
    pub fn cut_off(&self) -> String {
        self.address(LINKS[1].1)
    }

    /// Cuts that link, or mends it.
    pub fn set_link(&self, up: bool) {
        ip(&["link", "set", &self.link(LINKS[1].0), if up { "up" } else { "down" }]).unwrap();
    }

    fn address(&self, last: u8) -> String {
        format!("{}.{}", self.prefix, self.below + last)
    }

    /// The end of a link that is here. Names are short.
    fn link(&self, link: &str) -> String {
        let number = self.name.rsplit('-').next().unwrap_or_default();
        format!("eg{}{link}{number}", std::process::id() % 1_000_000)
    }

    fn there(&self, words: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.name], words].concat())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The links go with one of their ends.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

/// Removes namespaces that test processes which were killed have left.
fn remove_left() {
    let listed = Command::new("ip").args(["netns", "list"]).output();
    let listed =
        listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    for name in names.filter(|name| name.starts_with("eg-")) {
        let process = name.split('-').nth(1).unwrap_or_default();
        if !std::path::Path::new("/proc").join(process).exists() {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).output().map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}
