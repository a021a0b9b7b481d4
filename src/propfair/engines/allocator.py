"""Memory settings of the C library, for programs that allocate and free the same sizes over and over."""

import contextlib
import ctypes
import functools

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of glibc's mallopt


@functools.cache
def keep_freed_memory() -> bool:
    """Ask glibc not to give freed memory back after each step, only to fault it in again; False where there is none.

    By default large blocks are mapped anew each time. An LSTM on sequences of 80 then pays for 12,000 page faults a
    step, a quarter of its time.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # Older versions refuse thresholds above 32 MiB.
        kept = mallopt(_MMAP_THRESHOLD, 1 << 30) or mallopt(_MMAP_THRESHOLD, 32 << 20)
        return bool(kept and mallopt(_TRIM_THRESHOLD, 2**31 - 1) and mallopt(_TOP_PAD, 64 << 20))
    return False


def give_back_memory() -> None:
    """Return freed memory to the system, where glibc can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
