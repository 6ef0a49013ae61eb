# The boot sector of the guest's disk: it has the BIOS read the kernel and the initramfs that follow it, and starts the kernel by
# the 16-bit entry of Linux's boot protocol (Documentation/arch/x86/boot.rst). disk.rs lays out the disk, writes the fields of
# the kernel's header, and puts the two counts where `kernel` and `initramfs` are.
#
#   sector 0             this
#   sectors 1 to 114     the kernel's real-mode part, to 0x90000, with the command line at 0x9e000
#   from sector 115 on   the kernel's other part, to 0x100000, and then the initramfs, to 0x8000000, each in whole pieces of 63 KiB
        .code16
        .globl  _start
_start: ljmp    $0, $begin
begin:  xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movw    $0x7c00, %sp
        movb    %dl, drive
        movw    $0x9000, segment
        call    read
        movw    $0x9800, segment
        movw    $50, count
        call    read
        movw    $0x1000, segment
        movw    $126, count
        movw    kernel, %cx
        movl    $0x100000, target
        call    pieces
        movw    initramfs, %cx
        movl    $0x8000000, target
        call    pieces
        cli
        movw    $0x9000, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %fs
        movw    %ax, %gs
        movw    %ax, %ss
        movw    $0xe000, %sp
        ljmp    $0x9020, $0

# `count` sectors from `sector` on to `segment`.
read:   pusha
        movw    $packet, %si
        movb    drive, %dl
        movb    $0x42, %ah
        int     $0x13
        jc      fail
        movzwl  count, %eax
        addl    %eax, sector
        popa
        ret

# %cx pieces of 63 KiB, by way of 0x10000, to `target`.
pieces: call    read
        pusha
        movl    target, %eax
        movw    %ax, into + 2
        shrl    $16, %eax
        movb    %al, into + 4
        movb    %ah, into + 7
        movw    $moves, %si
        movw    $0x7e00, %cx
        movb    $0x87, %ah
        int     $0x15
        jc      fail
        addl    $0xfc00, target
        popa
        loop    pieces
        ret

# Says so on the serial line.
fail:   movw    $0x3f8, %dx
        movb    $'!', %al
        outb    %al, %dx
stop:   hlt
        jmp     stop

drive:  .byte   0
target: .long   0
packet: .byte   16, 0
count:  .word   64
        .word   0
segment: .word  0
sector: .quad   1
# What the BIOS's block move wants: descriptors of segments, two of them ours.
moves:  .quad   0, 0
        .word   0xffff, 0x0000
        .byte   0x01, 0x93, 0, 0
into:   .word   0xffff, 0
        .byte   0, 0x93, 0, 0
        .quad   0, 0

        .org    0x1fa
kernel: .word   0
initramfs: .word 0
        .word   0xaa55
