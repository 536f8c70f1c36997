// Stubs for functions of the driver that nobody has declared (unknown_calls.h): what they are called with is not known, so all registers
// that may carry arguments arrive at the driver's function as they left the program, and so does the stack. Stub n jumps to
// nvshare_unknown_targets[n]: at first nvshare_unknown_first_call, later the driver's function.

    .set stubs, 512                     // as in unknown_calls.cc
    .hidden nvshare_unknown_targets
    .hidden nvshare_unknown_called
    .hidden nvshare_unknown_stubs
    .hidden nvshare_unknown_first_call
    .globl nvshare_unknown_stubs
    .globl nvshare_unknown_first_call
    .text

#if defined(__x86_64__)

    .balign 16
    .type nvshare_unknown_stubs, @function
nvshare_unknown_stubs:
    .cfi_startproc
    .set number, 0
    .rept stubs
    endbr64
    movl $number, %r11d
    jmp *nvshare_unknown_targets + 8 * number(%rip)
    .balign 16
    .set number, number + 1
    .endr
    .cfi_endproc
    .size nvshare_unknown_stubs, . - nvshare_unknown_stubs

    .type nvshare_unknown_first_call, @function
    .balign 16
nvshare_unknown_first_call:
    .cfi_startproc
    endbr64
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
    push %rdi
    push %rsi
    push %rdx
    push %rcx
    push %r8
    push %r9
    push %rax                           // how many vector registers a call with a variable number of arguments uses
    push %r10
    sub $128, %rsp
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movl %r11d, %edi
    call nvshare_unknown_called
    mov %rax, %r11
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    add $128, %rsp
    pop %r10
    pop %rax
    pop %r9
    pop %r8
    pop %rcx
    pop %rdx
    pop %rsi
    pop %rdi
    pop %rbp
    .cfi_def_cfa %rsp, 8
    jmp *%r11
    .cfi_endproc
    .size nvshare_unknown_first_call, . - nvshare_unknown_first_call

#elif defined(__aarch64__)

    .balign 32
    .type nvshare_unknown_stubs, %function
nvshare_unknown_stubs:
    .cfi_startproc
    .set number, 0
    .rept stubs
    hint #34                            // bti c
    mov w16, #number
    b 1f
    .balign 16
    .set number, number + 1
    .endr
1:  adrp x17, nvshare_unknown_targets
    add x17, x17, :lo12:nvshare_unknown_targets
    ldr x17, [x17, w16, uxtw #3]
    br x17
    .cfi_endproc
    .size nvshare_unknown_stubs, . - nvshare_unknown_stubs

    .type nvshare_unknown_first_call, %function
    .balign 16
nvshare_unknown_first_call:
    .cfi_startproc
    hint #36                            // bti j
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset x29, -224
    .cfi_offset x30, -216
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w16
    bl nvshare_unknown_called
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    br x16
    .cfi_endproc
    .size nvshare_unknown_first_call, . - nvshare_unknown_first_call

#else
#error "unknown_calls.S: no code for this processor"
#endif

    .section .note.GNU-stack, "", %progbits
