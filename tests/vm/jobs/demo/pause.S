# A guest of one sector: a loop that does nothing but read the processor's time stamp counter. After each period it writes a line to its
# serial line: the counter, and the longest time between two readings in the period, both as hexadecimal numbers in units of 256 ticks.
        .code16
        .globl  _start
        .set    PERIOD, 1 << 20         # units: 0.1 s at 2.7 GHz
_start: ljmp    $0, $begin
begin:  xorw    %ax, %ax
        movw    %ax, %ss
        movw    $0x7c00, %sp
        movw    $0x3f8, %dx
        cli

        # %esi: the last reading, %edi: the longest pause, %ebp: when the period began.
period: call    now
        movl    %eax, %esi
        movl    %eax, %ebp
        xorl    %edi, %edi
again:  call    now
        movl    %eax, %ecx
        subl    %esi, %ecx
        movl    %eax, %esi
        cmpl    %edi, %ecx
        jbe     1f
        movl    %ecx, %edi
1:      subl    %ebp, %eax
        cmpl    $PERIOD, %eax
        jb      again

        # What writing takes is in no period.
        movl    %esi, %ebx
        movb    $' ', %ah
        call    write
        movl    %edi, %ebx
        movb    $'\n', %ah
        call    write
        jmp     period

# The counter in %eax; it wraps after six minutes at 3 GHz.
now:    pushw   %dx
        rdtsc
        shrdl   $8, %edx, %eax
        popw    %dx
        ret

# Writes %ebx, and the character in %ah behind it.
write:  movw    $8, %cx
2:      roll    $4, %ebx
        movb    %bl, %al
        andb    $15, %al
        addb    $'0', %al
        cmpb    $'9', %al
        jbe     3f
        addb    $('a' - '9' - 1), %al
3:      outb    %al, %dx
        loop    2b
        movb    %ah, %al
        outb    %al, %dx
        ret

        .org    0x1fe
        .word   0xaa55
