"""Data sources: one file each, every one gives `Examples`."""

from propfair.data.base import SOURCES, ArrayExamples, Augment, Examples, Protocol, Remote, Source

__all__ = ["SOURCES", "ArrayExamples", "Augment", "Examples", "Protocol", "Remote", "Source"]
