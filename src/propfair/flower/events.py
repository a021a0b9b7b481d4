"""What went wrong in a deployment: recorded every time, logged once."""

import logging
from collections.abc import Iterable

from flwr.app import Error
from flwr.common.constant import ErrorCode

from propfair.algorithms.base import ClientId
from propfair.engines.session import Event

log = logging.getLogger("flwr")  # so that our lines stand among Flower's, also in the log of a run
_AWAY = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
_LONGEST = 400


class EventLog:
    """The events of a deployment, oldest first.

    Kinds of events: "absent", the client was away or too late; "failed", its app raised an error; "refused", its reply
    was not believed; "diverged", its update or loss is not finite; "clipped", its update was shortened.

    Attributes:
        events: all of them.
        remarks: what was said that belongs to no client, as events without clients.
    """

    def __init__(self) -> None:
        self.round = 0
        self.events: list[Event] = []
        self.remarks: list[Event] = []
        self._said: set[tuple[str, object, str]] = set()

    def add(self, kind: str, clients: Iterable[ClientId], detail: str) -> None:
        """Record what happened to clients in this round; the log has it once."""
        who, detail = tuple(sorted(clients)), one_line(detail)
        if not who:
            return
        self.events.append(Event(self.round, kind, who, detail))
        if kind == "clipped":  # as asked for, and perhaps everybody's
            self.say(kind, detail)
            return
        fresh = [client for client in who if (kind, client, detail) not in self._said]
        self._said.update((kind, client, detail) for client in fresh)
        if fresh:
            log.warning("round %d: %s %s: %s", self.round, named(fresh), kind, detail)

    def refuse(self, client: ClientId | None, detail: str) -> None:
        """Record that a node is not let in; None: it does not say which client it is."""
        if client is not None:
            self.events.append(Event(self.round, "refused", (client,), one_line(detail)))
        self.say("refused", detail)

    def say(self, kind: str, detail: str) -> None:
        """Log something that belongs to no client; once."""
        detail = one_line(detail)
        if (kind, None, detail) not in self._said:
            self._said.add((kind, None, detail))
            self.remarks.append(Event(self.round, kind, (), detail))
            log.warning("%s", detail)

    def of_round(self, number: int, *kinds: str) -> list[Event]:
        """The events of a round, of these kinds."""
        return [event for event in self.events if event.round == number and event.kind in kinds]


def kind_of(error: Error) -> str:
    """Whether an error is one of the client's app, or says that the client is away."""
    return "absent" if error.code in _AWAY else "failed"


def one_line(text: str) -> str:
    """A text without breaks, and not longer than a log can bear."""
    joined = " ".join(str(text).split())
    return joined if len(joined) <= _LONGEST else f"{joined[:_LONGEST]}..."


def named(clients: Iterable[ClientId]) -> str:
    """Some clients, for messages."""
    few = list(clients)
    if len(few) == 1:
        return f"client {few[0]}"
    more = f" and {len(few) - 10} more" if len(few) > 10 else ""
    return f"clients {', '.join(map(str, few[:10]))}{more}"
