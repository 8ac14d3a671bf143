"""Which message a producer may publish: in order within a group, whatever fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.client.links import Publication
from dispatcher.client.send_queue import UNCONFIRMED_MAX, Outgoing, SendQueue
from dispatcher.errors import SendFailed


def outgoing(
    token: int, group: bytes | None = None, abandoned: Callable[[], bool] = lambda: False
) -> Outgoing:
    publication = Publication(token, "", "q", f"id-{token}", b"\0\0", b"")
    return Outgoing(group, publication, lambda _: None, abandoned)


def send_queue(*messages: Outgoing) -> SendQueue:
    made = SendQueue()
    for message in messages:
        made.submit(message)
    return made


def taken(made: SendQueue) -> list[int]:
    return [publication.token for publication in made.take()]


def test_one_message_of_a_group_at_a_time() -> None:
    made = send_queue(outgoing(1, b"a"), outgoing(2, b"a"), outgoing(3, b"b"), outgoing(4))
    assert taken(made) == [1, 3, 4]
    assert taken(made) == []
    made.confirmed(1)
    assert taken(made) == [2]


def test_what_waits_behind_a_refused_message_fails_too() -> None:
    made = send_queue(outgoing(1, b"a"), outgoing(2, b"a"), outgoing(3, b"b"), outgoing(4, b"b"))
    taken(made)
    failures = made.refused(1, "NO_ROUTE")
    assert [failure.outgoing.number for failure in failures] == [1, 2]
    assert [str(failure.error) for failure in failures] == [
        "RabbitMQ did not take the message: NO_ROUTE",
        "not sent, because a message before it in its group failed: NO_ROUTE",
    ]
    made.submit(outgoing(5, b"a"))
    assert taken(made) == [5], "the group goes on with what is sent after the failure"


def test_after_a_lost_connection_everything_goes_again_in_order() -> None:
    made = send_queue(
        *[outgoing(token, group) for token, group in enumerate((b"a", None, b"b", b"a", None), 1)]
    )
    assert taken(made) == [1, 2, 3, 5]
    made.confirmed(2)
    made.connection_lost()
    assert taken(made) == [1, 3, 5]
    assert made.confirmed(2) is None


def test_an_abandoned_message_is_not_sent_unless_it_was() -> None:
    gone: set[int] = set()
    made = send_queue(*[outgoing(token, b"a", lambda token=token: token in gone) for token in (1, 2, 3)])
    assert taken(made) == [1]
    gone |= {1, 2}
    made.confirmed(1)
    assert taken(made) == [3]
    made.confirmed(3)
    assert len(made) == 0


def test_the_number_of_unconfirmed_messages_is_bounded() -> None:
    made = send_queue(*[outgoing(token) for token in range(1, UNCONFIRMED_MAX + 3)])
    assert len(taken(made)) == UNCONFIRMED_MAX
    made.confirmed(1)
    assert taken(made) == [UNCONFIRMED_MAX + 1]


def test_a_message_id_is_unique_among_what_is_being_sent() -> None:
    made = send_queue(outgoing(1))
    with pytest.raises(ValueError, match="message_id 'id-1' is being sent"):
        made.submit(outgoing(1))
    taken(made)
    made.confirmed(1)
    made.submit(outgoing(1))


def test_a_closed_channel_fails_what_was_in_flight() -> None:
    made = send_queue(outgoing(1, b"a"), outgoing(2, b"a"), outgoing(3))
    taken(made)
    assert sorted(failure.outgoing.number for failure in made.fail_in_flight("NOT_FOUND")) == [1, 2, 3]
    assert len(made) == 0


@given(
    st.lists(st.sampled_from([None, b"a", b"b"]), max_size=12),
    st.lists(st.sampled_from(["take", "confirm", "lose", "refuse"]), max_size=30),
)
def test_any_course_publishes_each_group_in_order(groups: list[bytes | None], steps: list[str]) -> None:
    made = send_queue(*[outgoing(token, group) for token, group in enumerate(groups, 1)])
    group_of = dict(enumerate(groups, 1))
    in_flight: list[int] = []
    over: set[int] = set()
    for step in [*steps, *(["take", "confirm"] * len(groups))]:
        if step == "take":
            for token in taken(made):
                before = [t for t in group_of if t < token and group_of[t] == group_of[token] is not None]
                assert over.issuperset(before)
                in_flight.append(token)
        elif step == "lose":
            made.connection_lost()
            in_flight.clear()
        elif in_flight and step == "confirm":
            over.add(in_flight[0])
            assert made.confirmed(in_flight.pop(0))
        elif in_flight and step == "refuse":
            over |= {failure.outgoing.number for failure in made.refused(in_flight.pop(0), "")}
    assert over == set(group_of)
    assert len(made) == 0


def test_closing_fails_everything() -> None:
    made = send_queue(outgoing(1, b"a"), outgoing(2, b"a"), outgoing(3), outgoing(4))
    taken(made)
    made.submit(outgoing(5))
    failures = made.fail_all(SendFailed("closed"))
    assert sorted(failure.outgoing.number for failure in failures) == [1, 2, 3, 4, 5]
    assert taken(made) == []
