# A guest of one sector: it says on its serial line that it runs, and ends when its power button is pressed.
        .code16
        .globl  _start
_start: ljmp    $0, $begin
begin:  xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %ss
        movw    $0x7c00, %sp
        cld
        movw    $up, %si
        call    say
        # The machine's ACPI registers are where SeaBIOS puts them: the button's event is enabled, and waited for between two
        # ticks of the timer.
        movw    $0x602, %dx
        movw    $0x100, %ax
        outw    %ax, %dx
        movw    $0x600, %dx
        sti
wait:   hlt
        inw     %dx, %ax
        testw   $0x100, %ax
        jz      wait
        movw    $pressed, %si
        call    say
        # Soft off.
        movw    $0x604, %dx
        movw    $0x2000, %ax
        outw    %ax, %dx
stop:   hlt
        jmp     stop

say:    movw    $0x3f8, %dx
next:   lodsb
        outb    %al, %dx
        testb   %al, %al
        jnz     next
        ret

up:     .asciz  "guest: up\r\n"
pressed: .asciz "guest: power button\r\n"

        .org    0x1fe
        .word   0xaa55
