//! What of the C library must stay: its name, its symbols, what it needs. And what it costs
//! programs that do not use it: nothing.

use crate::{built, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A 64-bit little-endian ELF file.
struct Elf(Vec<u8>);

impl Elf {
    fn of(name: &str) -> Elf {
        let elf = fs::read(built(name)).unwrap();
        assert_eq!(&elf[..6], b"\x7fELF\x02\x01", "{name}");
        Elf(elf)
    }

    fn number(&self, at: usize, bytes: usize) -> usize {
        let bytes = self.0[at..at + bytes].iter().rev();
        bytes.fold(0, |sum, &byte| sum << 8 | usize::from(byte))
    }

    fn text(&self, at: usize) -> String {
        let end = self.0[at..].iter().position(|&byte| byte == 0).unwrap();
        String::from_utf8(self.0[at..at + end].to_vec()).unwrap()
    }

    /// Where the section of this kind, its strings, and its end are.
    fn section(&self, kind: usize) -> (usize, usize, usize) {
        let (table, entry) = (self.number(0x28, 8), self.number(0x3a, 2));
        let head = |index: usize| table + index * entry;
        let found = (0..self.number(0x3c, 2)).map(head).find(|&at| self.number(at + 4, 4) == kind);
        let found = found.unwrap();
        let strings = self.number(head(self.number(found + 0x28, 4)) + 0x18, 8);
        let (start, bytes) = (self.number(found + 0x18, 8), self.number(found + 0x20, 8));
        (start, strings, start + bytes)
    }

    /// The texts of the dynamic entries with this tag.
    fn dynamic(&self, tag: usize) -> BTreeSet<String> {
        const DYNAMIC: usize = 6;
        let (start, strings, end) = self.section(DYNAMIC);
        let entries = (start..end).step_by(16).filter(|&at| self.number(at, 8) == tag);
        entries.map(|at| self.text(strings + self.number(at + 8, 8))).collect()
    }

    /// The libraries that it has loaded.
    fn needed(&self) -> BTreeSet<String> {
        const NEEDED: usize = 1;
        self.dynamic(NEEDED)
    }

    /// The global symbols that it defines.
    fn exported(&self) -> BTreeSet<String> {
        const DYNSYM: usize = 11;
        let (start, strings, end) = self.section(DYNSYM);
        let symbols = (start..end).step_by(24);
        let defined = symbols.filter(|&at| self.0[at + 4] >> 4 != 0 && self.number(at + 6, 2) != 0);
        defined.map(|at| self.text(strings + self.number(at, 4))).collect()
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn header() -> String {
    read("include/forebay/forebay.h")
}

/// The functions of the library as they are checked in.
fn listed() -> BTreeSet<String> {
    read("crates/capi/symbols.txt").lines().map(str::to_owned).collect()
}

#[test]
fn the_library_exports_what_the_list_says_and_nothing_else() {
    const SONAME: usize = 14;
    let library = Elf::of("libforebay_capi.so");
    assert_eq!(library.exported(), listed(), "the list is on the right: crates/capi/symbols.txt");
    assert_eq!(library.dynamic(SONAME), ["libforebay.so.0".to_owned()].into());
    let system = ["libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];
    let needed = library.needed();
    assert!(needed.iter().all(|name| system.contains(&name.as_str())), "{needed:?}");
}

#[test]
fn the_header_declares_each_function_and_says_since_when_it_is() {
    let header = header();
    for name in listed() {
        let at = header.find(&format!("{name}(")).filter(|_| {
            let declared = ["int ", "int64_t ", "const char *"];
            declared.iter().any(|kind| header.contains(&format!("\n{kind}{name}(")))
        });
        assert!(at.is_some(), "forebay.h does not declare {name}");
        let declared = ["int ", "int64_t ", "const char *"];
        let at = declared.iter().find_map(|kind| header.find(&format!("\n{kind}{name}("))).unwrap();
        let comment = header[..at].rfind("/*").map(|start| &header[start..at]).unwrap();
        let comment = comment.replace("\n *", "");
        let says = ["Since 1.", "Since 2.", "Since 3.", "Since 4."]
            .iter()
            .any(|since| comment.contains(since));
        assert!(says, "forebay.h does not say since when {name} is");
    }
    let declared = header.matches("forebay_").count();
    assert!(declared > 2 * listed().len(), "{declared}");
}

#[test]
fn the_page_names_each_function_and_each_error() {
    let page = read("docs/api.md");
    let header = header();
    let errors = header.split_whitespace().filter(|word| word.starts_with("FOREBAY_E_"));
    let errors = errors.filter(|word| word.ends_with(|c: char| c.is_ascii_uppercase()));
    let names: BTreeSet<_> = listed().into_iter().chain(errors.map(str::to_owned)).collect();
    assert!(names.len() > 25, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !page.contains(&format!("`{name}"))).collect();
    assert!(missing.is_empty(), "docs/api.md lacks {missing:?}");
}

#[test]
fn the_preload_library_loads_nothing_but_the_c_library() {
    let library = Elf::of("libforebay_preload.so");
    let mut needed = library.needed();
    // Where the compiler has no archive of the unwinder.
    needed.remove("libgcc_s.so.1");
    let loader = needed.iter().filter(|name| name.starts_with("ld-linux-")).count();
    assert!(needed.remove("libc.so.6") && needed.len() == loader, "{needed:?}");
    assert!(library.exported().contains("forebay_services_1"));
}

#[test]
fn the_sources_of_the_library_fit_the_header() {
    assert!(header().contains("#define FOREBAY_API_VERSION 4\n"));
    let source = read("crates/capi/src/lib.rs");
    assert!(source.contains("const API_VERSION: c_int = 4;"));
    let manifest = Path::new("crates/capi/build.rs");
    assert!(read(manifest.to_str().unwrap()).contains("libforebay.so.0"));
}
