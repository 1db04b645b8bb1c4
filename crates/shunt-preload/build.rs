//! Link-time properties of libshunt.so.

// The unwinder stays in libgcc_s.so.1, although loading it costs every program
// 0.18 ms at its start: a cancelled thread is unwound by the copy that libc loads,
// and frames of ours with something to clean up must use the same one.
fn main() {
    // Signal handlers, exit handlers and cached addresses point into the library
    // for as long as the process lives.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libshunt.so");
    println!("cargo:rerun-if-changed=build.rs");
}
