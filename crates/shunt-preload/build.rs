//! Link-time properties of libshunt.so.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    // Every program started under Shunt would load libgcc_s.so.1 for the sake of
    // the standard library's unwinder (0.13 ms). The linker takes this script for
    // `-lgcc_s` and puts the unwinder into the library. A cancelled thread is then
    // unwound by another copy than ours: no frame of ours that a real call can be
    // cancelled under may have clean-ups (see `shunt_engine::real::sleeping`).
    let directory = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(directory.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")
        .expect("OUT_DIR is writable");
    println!("cargo:rustc-link-search=native={}", directory.display());

    // Signal handlers, exit handlers and cached addresses point into the library
    // for as long as the process lives.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libshunt.so");

    // Every program started under Shunt pays for what the loader does with the
    // library, above all for the pages that it touches (see docs/decisions/0007). So
    // no start files: their constructors and destructors do nothing for a library
    // that stays, in pages of their own
    // (`__dso_handle`, which they define, is ours). And few segments: constants with
    // the code, and data that the loader relocates with the rest, where the addresses
    // of the functions that ours stand in front of can be written anyway.
    println!("cargo:rustc-cdylib-link-arg=-nostartfiles");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,norelro");
    // The standard library's calls of functions that are ours here need not be looked up by name.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        // An option of lld, which is Rust's linker there.
        println!("cargo:rustc-cdylib-link-arg=-Wl,--no-rosegment");
        // The loader writes to each page of the data: so no more of them than there are bytes for.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,separate-loadable-segments");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
