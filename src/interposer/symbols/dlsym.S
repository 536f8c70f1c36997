// dlsym, dlvsym, dlopen and dlmopen. The C part decides (dlsym.cc, dlopen.cc): it is given the arguments, three at most, and the caller's
// return address as the fourth. It returns two words, where to jump and what to return if there is nowhere to jump.
// The jump happens with the caller's arguments and return address in place, as if the caller had called glibc's function itself.

#if defined(__x86_64__)

.macro lookup name, route
    .globl \name
    .type \name, @function
    .hidden nvshare_own_\name
    .globl nvshare_own_\name
    .balign 16
nvshare_own_\name:
\name:
    .cfi_startproc
    endbr64
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx                       // also aligns the stack to 16
    .cfi_adjust_cfa_offset 8
    mov 24(%rsp), %rcx              // where the caller goes on
    call \route
    mov %rdx, %rcx
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    test %rax, %rax
    jz 1f
    jmp *%rax
1:  mov %rcx, %rax
    ret
    .cfi_endproc
    .size \name, . - \name
.endm

#elif defined(__aarch64__)

.macro lookup name, route
    .globl \name
    .type \name, %function
    .hidden nvshare_own_\name
    .globl nvshare_own_\name
    .balign 16
nvshare_own_\name:
\name:
    .cfi_startproc
    hint #34                        // bti c
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset x29, -48
    .cfi_offset x30, -40
    mov x29, sp
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    mov x3, x30
    bl \route
    mov x16, x0
    mov x17, x1
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    cbz x16, 1f
    br x16
1:  mov x0, x17
    ret
    .cfi_endproc
    .size \name, . - \name
.endm

#else
#error "dlsym.S: no code for this processor"
#endif

    .hidden nvshare_route_dlsym
    .hidden nvshare_route_dlvsym
    .hidden nvshare_route_dlopen
    .hidden nvshare_route_dlmopen

    .text
    lookup dlsym, nvshare_route_dlsym
    lookup dlvsym, nvshare_route_dlvsym
    lookup dlopen, nvshare_route_dlopen
    lookup dlmopen, nvshare_route_dlmopen

    .section .note.GNU-stack, "", %progbits
