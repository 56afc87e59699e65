#!/usr/bin/env python3
# extract-vmlinux.py BZIMAGE OUT: the uncompressed ELF image out of a bzImage. Where the payload lies is in the setup
# header (Linux, Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length).
import lzma
import struct
import subprocess
import sys
import zlib

image = open(sys.argv[1], "rb").read()
setup_sectors = image[0x1F1] or 4
offset, length = struct.unpack_from("<II", image, 0x248)
begin = (setup_sectors + 1) * 512 + offset
payload = image[begin : begin + length]
if payload.startswith(b"\xfd7zXZ\0"):
    kernel = lzma.LZMADecompressor().decompress(payload)
elif payload.startswith(b"\x1f\x8b"):
    kernel = zlib.decompressobj(31).decompress(payload)
elif payload.startswith(b"\x28\xb5\x2f\xfd"):
    # The last four bytes are the size of the result.
    kernel = subprocess.run(["zstd", "-dc"], input=payload[:-4], stdout=subprocess.PIPE).stdout
else:
    raise SystemExit(f"unknown compression: {payload[:8].hex()}")
if not kernel.startswith(b"\x7fELF"):
    raise SystemExit("no ELF image inside")
with open(sys.argv[2], "wb") as out:
    out.write(kernel)
