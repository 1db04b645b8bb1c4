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
    println!("cargo:rerun-if-changed=build.rs");
}
