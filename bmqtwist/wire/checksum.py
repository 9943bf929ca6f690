"""CRC32-C (Castagnoli, reflected, initial value and final xor all ones) of bytes or a memoryview; with a second argument, of
bytes that follow those with that checksum."""

from crc32c import crc32c

__all__ = ["crc32c"]
