// An arm64 guest that starts its other vCPUs by PSCI CPU_ON and then stays idle, as x86 firmware does without a disk: the timer wakes each vCPU from WFI,
// and its interrupt stays masked.
        .globl  _start
_start: mov     x4, #1
1:      mov     w0, #3                  // CPU_ON with 64-bit arguments: 0xc4000003
        movk    w0, #0xc400, lsl #16
        mov     x1, x4                  // which vCPU, by its affinity
        adr     x2, wait                // where it starts
        mov     x3, xzr
        hvc     #0
        cbnz    w0, wait                // there is none of that number
        add     x4, x4, #1
        cmp     x4, #16
        b.lo    1b
wait:   mrs     x0, cntfrq_el0
        lsr     x0, x0, #3
        msr     cntv_tval_el0, x0
        mov     x0, #1
        msr     cntv_ctl_el0, x0
        wfi
        b       wait
