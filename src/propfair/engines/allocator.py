"""Memory settings of the C library: one for processes that train, one for those that only coordinate."""

import contextlib
import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of glibc's mallopt
_MIB = 1 << 20


def keep_freed_memory() -> bool:
    """For processes that train: don't give freed memory back; False where there is no glibc to ask.

    Steps allocate and free the same sizes over and over, which by default are mapped anew each time. An LSTM on
    sequences of 80 then pays for 12,000 page faults a step, a quarter of its time.
    """
    # Older versions refuse mmap thresholds above 32 MiB.
    return _set(1024 * _MIB, 2**31 - 1, 64 * _MIB) or _set(32 * _MIB, 2**31 - 1, 64 * _MIB)


def give_back_memory() -> bool:
    """For processes that coordinate: give large blocks back at once, and what is free now.

    A model's vectors come and go once a round. On the heap, small things settle in the gaps that they leave, and it
    grows with every round.
    """
    done = _set(_MIB, _MIB, 0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return done


def _set(mmap_threshold: int, trim_threshold: int, top_pad: int) -> bool:
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        wanted = ((_MMAP_THRESHOLD, mmap_threshold), (_TRIM_THRESHOLD, trim_threshold), (_TOP_PAD, top_pad))
        return all(mallopt(setting, value) for setting, value in wanted)
    return False
