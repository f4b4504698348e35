"""The mixing function of splitmix64 (Steele, Lea and Flood, 2014): a number in, noise out."""

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: what splitmix64 adds from one number to the next."""


def scramble(value: int) -> int:
    """Return 64 bits that look nothing like *value*, of which 64 bits count; one to one."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)
