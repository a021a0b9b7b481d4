"""A session that leaves the work to another one, and may change to a better one on the way."""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from propfair.algorithms.base import ClientId
from propfair.core.client import Memory
from propfair.core.messages import Block, Job
from propfair.engines.session import Session


class DelegatingSession(Session):
    """Passes everything on to `inner`."""

    def __init__(self, inner: Session) -> None:
        super().__init__(inner.work)
        self.inner = inner
        inner.events, inner.notes = self.events, self.notes

    def go_on_with(self, session: Session) -> None:
        """Close the session that did the work so far, and leave the rest to another one; memories move over."""
        session.restore(self.inner.memories)
        session.events, session.notes = self.events, self.notes
        self.inner.close()
        self.inner = session

    def train(self, job: Job) -> Iterator[Block]:
        yield from self.inner.train(job)

    def measure(self, params: Tensor, buffers: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
        return self.inner.measure(params, buffers, batches)

    def measure_each(self, models: Sequence[Memory], batches: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return self.inner.measure_each(models, batches)

    def measure_metrics(
        self, models: Sequence[Memory], batches: Sequence[Sequence[Tensor]], names: Sequence[str]
    ) -> Tensor:
        return self.inner.measure_metrics(models, batches, names)

    @property
    def memories(self) -> Mapping[ClientId, Memory]:
        return self.inner.memories

    def restore(self, memories: Mapping[ClientId, Memory]) -> None:
        self.inner.restore(memories)

    def close(self) -> None:
        self.inner.close()
