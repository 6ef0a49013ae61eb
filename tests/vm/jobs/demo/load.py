#!/usr/bin/env python3
"""Has the node's network card and a disk fire: a packet that nobody answers, and a block past the cache, again and again."""
import mmap
import os
import socket
import time

packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
disk = os.open("/dev/vdb", os.O_RDONLY | os.O_DIRECT)
block = mmap.mmap(-1, 4096)  # aligned, as direct reads want it
while True:
    packets.sendto(b"noise", ("10.0.2.2", 9))
    os.preadv(disk, [block], 0)
    time.sleep(0.002)
