//! Blocks in the order of a Lehmer generator, as a loader shuffles records without a list of them:
//! behind block x follows 71 x mod 251. Expects the next 16.
//!
//!     rustc --target wasm32-unknown-unknown --crate-type cdylib -C opt-level=z -C strip=symbols \
//!         -C panic=abort -o lehmer.wasm lehmer.rs

#![no_std]

#[link(wasm_import_module = "forebay")]
unsafe extern "C" {
    fn expect(block: u64, count: u64);
}

#[unsafe(no_mangle)]
extern "C" fn forebay_read(_reader: u32, mut block: u64, blocks: u64, _hit: u32) {
    // The order has the blocks 1 to 250.
    if blocks < 251 || block >= 251 {
        return;
    }
    for _ in 0..16 {
        block = block * 71 % 251;
        unsafe { expect(block, 1) };
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}
