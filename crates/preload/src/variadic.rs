//! Variadic functions, which `variadic.c` defines.

use core::arch::naked_asm;

/// Exports a public name that jumps to a variadic function of the C shim.
macro_rules! variadic {
    ($($name:ident -> $target:ident;)*) => { $(
        unsafe extern "C" { fn $target(); }
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!("jmp {}", sym $target);
            #[cfg(target_arch = "aarch64")]
            naked_asm!("b {}", sym $target);
        }
    )* };
}

variadic! {
    execl -> forebay_execl;
    execlp -> forebay_execlp;
    execle -> forebay_execle;
    dprintf -> forebay_dprintf;
    vdprintf -> forebay_vdprintf;
    __dprintf_chk -> forebay_dprintf_chk;
    __vdprintf_chk -> forebay_vdprintf_chk;
    fwprintf -> forebay_fwprintf;
    wprintf -> forebay_wprintf;
    __fwprintf_chk -> forebay_fwprintf_chk;
    __wprintf_chk -> forebay_wprintf_chk;
    fwscanf -> forebay_fwscanf;
    wscanf -> forebay_wscanf;
    __isoc99_fwscanf -> forebay_isoc99_fwscanf;
    __isoc99_wscanf -> forebay_isoc99_wscanf;
    __isoc23_fwscanf -> forebay_isoc23_fwscanf;
    __isoc23_wscanf -> forebay_isoc23_wscanf;
}
