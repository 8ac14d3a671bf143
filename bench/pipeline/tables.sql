-- The tables of a report, as docs/pipeline.md describes them, from `records`, which by_duckdb.py makes: each record of
-- the ledger once, with its `lane` and `turn`.

create macro spent(since, until) as nullif(greatest(epoch_us(until) - epoch_us(since), -1), -1);
create macro known(at_end, at_beginning, is_whole) as case when is_whole then at_end else coalesce(at_end, at_beginning) end;

create table handing_over as
select distinct lane from all_records where event = 'lane_started' and json_array_length(detail, '$.handover') > 0;

-- What a leader read in the journal happened between its turn and the one before.
create view told as
select * replace (turn - (dispatched_at is null and coalesce(json_exists(detail, '$.commits'), false))::int as turn,
        case when inbound is not null then arrival_epoch end as arrival_epoch,
        case when inbound is not null then arrival end as arrival),
    event <> 'dispatched' as is_end, event <> 'dispatched' and dispatched_at is not null as is_whole
from records
where seq is not null and incarnation is not null
    and event in ('settled', 'failed', 'taken_back', 'vanished', 'dispatched');

-- Each hand-over once: its first end, and of an end that another leader tells what the beginning had.
create table handed as
with first_told as (
    select * from told qualify row_number() over (partition by lane, incarnation, seq, is_end order by turn, ordinal) = 1
), e as (
    select * from first_told where is_end
), b as (
    select * from first_told where not is_end
)
select coalesce(e.lane, b.lane) as lane, coalesce(e.incarnation, b.incarnation) as incarnation,
    coalesce(e.seq, b.seq) as seq, coalesce(e.event, 'open') as outcome, e.time as ended_at,
    coalesce(e.turn, b.turn) as turn, case when e.is_whole then e.turn else coalesce(b.turn, e.turn) end as began_turn,
    case when e.is_end then e.reason else b.reason end as reason,
    case when e.is_end then e.calls else b.calls end as calls,
    known(e.inbound, b.inbound, e.is_whole) as inbound, known(e.arrival, b.arrival, e.is_whole) as arrival,
    known(e.arrival_epoch, b.arrival_epoch, e.is_whole) as arrival_epoch,
    known(e."group", b."group", e.is_whole) as "group", known(e.epoch, b.epoch, e.is_whole) as epoch,
    known(e.group_seq, b.group_seq, e.is_whole) as group_seq, known(e.consumer, b.consumer, e.is_whole) as consumer,
    known(e.attempt, b.attempt, e.is_whole) as attempt, known(e.size, b.size, e.is_whole) as size,
    known(e.cost, b.cost, e.is_whole) as cost, known(e.type, b.type, e.is_whole) as type,
    known(e.wait_cause, b.wait_cause, e.is_whole) as wait_cause,
    known(e.received_at, b.received_at, e.is_whole) as received_at,
    known(e.dispatched_at, b.dispatched_at, e.is_whole) as dispatched_at,
    known(e.committed_at, b.committed_at, e.is_whole) as committed_at,
    known(e.confirmed_at, b.confirmed_at, e.is_whole) as confirmed_at
from e full join b on (e.lane, e.incarnation, e.seq) = (b.lane, b.incarnation, b.seq);

-- In hand-over lanes a message that was read back from its consumer's queue was handed over until then.
create table hand_overs as
with back as (
    select lane, incarnation, seq, min({'turn': turn, 'time': time}) as back
    from records where event = 'read_back' and lane in (from handing_over) group by all
), ended as (
    select h.* replace (
        case when is_back then 'taken_back' else outcome end as outcome,
        case when is_back then back.time else ended_at end as ended_at,
        case when is_back then back.turn else turn end as turn
    )
    from (
        select handed.*, back, back is not null and outcome in ('settled', 'open') as is_back
        from handed left join back using (lane, incarnation, seq)
    ) h
)
select * exclude (back, is_back), date_trunc('day', ended_at) as day, date_trunc('hour', ended_at) as hour,
    case when attempt = 1 then spent(received_at, dispatched_at) end as wait_us,
    spent(dispatched_at, committed_at) as commit_us, spent(committed_at, confirmed_at) as confirm_us,
    case when began_turn = turn then spent(committed_at, ended_at) end as process_us
from ended;

-- A consumer is busy with what it settles since its settle before on that day, or since the hand-over.
create table worked as
with settles as (
    select *, case when outcome in ('settled', 'failed') then epoch_us(ended_at) end as told from hand_overs
), s as (
    select *, count(*) over at_once as n, min(epoch_us(dispatched_at)) over at_once as first_us,
        max(told) over (partition by lane, turn, incarnation, day order by told
                        range between unbounded preceding and 1 preceding) as before_us
    from settles window at_once as (partition by lane, turn, incarnation, day, told)
)
select * exclude (n, first_us, before_us, told),
    case when told is not null and began_turn = turn and dispatched_at is not null
         then greatest(0, told - greatest(before_us, first_us)) / n end as work_us
from s;

-- Groups, hot and not. The work of a consumer on a day is in whole µs, and days and consumers add up.
create table by_group as
with parts as (
    select lane, "group", consumer, day, count(*) as messages, coalesce(sum(cost), 0) as cost,
        coalesce(round(sum(work_us)), 0) as busy_us
    from worked where outcome = 'settled' and "group" is not null group by all
)
select lane, "group", sum(messages)::bigint as messages, sum(cost)::bigint as cost, sum(busy_us)::bigint as busy_us
from parts group by all;

create table hot_groups as
select *, messages / sum(messages) over (partition by lane) as share,
    row_number() over (partition by lane order by messages desc, "group") as rank
from by_group qualify rank <= 100;

create table lanes as
with ranked as (
    select *, row_number() over (partition by lane order by messages, "group") as up,
        row_number() over (partition by lane order by messages desc, "group" desc) as down
    from by_group
)
select lane, count(*) as groups, sum(messages)::bigint as messages,
    2 * sum(up * messages) / (count(*) * sum(messages)) - (count(*) + 1) / count(*) as gini,
    sum(messages) filter (down <= 10) / sum(messages) as top_share
from ranked group by lane;

create table holders as
with parts as (
    select w.lane, rank, w."group", consumer, day, count(*) as hand_overs,
        coalesce(round(sum(work_us)), 0) as busy_us
    from worked w join hot_groups h on w.lane = h.lane and w."group" = h."group" and rank <= 20 group by all
)
select lane, rank, "group", consumer, sum(hand_overs)::bigint as hand_overs, sum(busy_us)::bigint as busy_us
from parts group by all;

create table cost_model as
select lane, inbound, type, power(2, ceil(log2(size + 1)))::bigint as size_below, count(*) as messages,
    avg(work_us) as mean_us, stddev_samp(work_us) as deviation_us
from worked where outcome = 'settled' and work_us is not null and size is not null group by all;

-- Messages: the records about them that no consumer has, and their hand-overs in order.
create table told_messages as
select lane, inbound, arrival_epoch, arrival, max("group") as "group", max(size) as size, max(cost) as cost,
    min(received_at) as received_at, min(time) filter (event = 'parked') as parked_at,
    count(*) filter (event = 'parked') as times_parked, max(turn) as received_turn,
    max({'turn': turn, 'time': time, 'event': event, 'reason': reason})
        filter (event not in ('received', 'parked')) as gone
from records
where event in ('received', 'parked', 'dead_lettered', 'dropped', 'moved', 'purged', 'deduplicated', 'vanished')
    and seq is null and inbound is not null and arrival_epoch is not null and arrival is not null
group by lane, inbound, arrival_epoch, arrival;

create table handed_messages as
with steps as (
    select h.*, row_number() over hands as nth, lag(ended_at) over hands as before_at, lag(turn) over hands as before_turn,
        least(min(h.received_at) over message, t.received_at) as first_received_at
    from hand_overs h left join told_messages t using (lane, inbound, arrival_epoch, arrival)
    where inbound is not null and arrival_epoch is not null and arrival is not null
    window message as (partition by lane, inbound, arrival_epoch, arrival),
        hands as (message order by began_turn nulls first, attempt nulls first, dispatched_at nulls first,
                  committed_at nulls first, confirmed_at nulls first, ended_at nulls first, outcome, consumer)
), waited as (
    select *, row_number() over (partition by lane, inbound, arrival_epoch, arrival, consumer order by nth) as nth_there,
        case when nth = 1 then first_received_at else before_at end as since,
        coalesce(before_turn, began_turn) = began_turn as one_clock,
        case when one_clock then greatest(0, epoch_us(dispatched_at) - epoch_us(since)) end as waited_us
    from steps
)
select lane, inbound, arrival_epoch, arrival, max("group") as "group", max(size) as size, max(cost) as cost,
    min(received_at) as received_at, count(*) as hand_overs, sum(coalesce(calls, 0)) as calls,
    list(consumer order by nth) filter (nth_there = 1) as consumers,
    arg_min(began_turn, nth) as first_turn, first(dispatched_at order by nth) as first_dispatched_at,
    last({'turn': turn, 'dispatched_at': dispatched_at, 'committed_at': committed_at, 'confirmed_at': confirmed_at,
          'ended_at': ended_at, 'outcome': outcome, 'reason': reason, 'attempt': attempt} order by nth) as last,
    coalesce(sum(waited_us) filter (wait_cause = 'retry'), 0) as wait_retry_us,
    coalesce(sum(waited_us) filter (wait_cause = 'parked'), 0) as wait_parked_us,
    coalesce(sum(waited_us) filter (wait_cause = 'paused'), 0) as wait_paused_us,
    coalesce(sum(waited_us) filter (wait_cause = 'group'), 0) as wait_group_us,
    coalesce(sum(waited_us) filter (wait_cause = 'window'), 0) as wait_window_us,
    coalesce(sum(waited_us) filter (wait_cause = 'consumer'), 0) as wait_consumer_us,
    coalesce(sum(waited_us) filter (wait_cause = 'turn'), 0) as wait_turn_us
from waited group by lane, inbound, arrival_epoch, arrival;

create table lifecycle as
with last_leader as (
    select lane, max(turn) as turn from all_records group by lane
    having not bool_or(event = 'lane_ended' and turn = (select max(turn) from all_records r where r.lane = all_records.lane))
), both_told as (
    select coalesce(h.lane, t.lane) as lane, coalesce(h.inbound, t.inbound) as inbound,
        coalesce(h.arrival_epoch, t.arrival_epoch) as arrival_epoch, coalesce(h.arrival, t.arrival) as arrival,
        greatest(h."group", t."group") as "group", greatest(h.size, t.size) as size, greatest(h.cost, t.cost) as cost,
        least(h.received_at, t.received_at) as received_at,
        h.* exclude (lane, inbound, arrival_epoch, arrival, "group", size, cost, received_at),
        t.parked_at, coalesce(t.times_parked, 0) as times_parked, t.received_turn, t.gone,
        -- A hand-over consumer rejects what its queue has had, which counts as settled.
        coalesce(last.outcome = 'settled', false) and not coalesce(
            gone.event = 'dead_lettered' and (gone.turn, gone.time) >= (last.turn, last.ended_at), false) as is_settled
    from handed_messages h full join told_messages t using (lane, inbound, arrival_epoch, arrival)
), ended as (
    select m.*,
        case when is_settled then 'settled' when gone is not null then gone.event
             when hand_overs > 0 then last.outcome when l.turn = received_turn then 'waiting' else 'returned' end
            as outcome,
        case when is_settled then last.ended_at
             else coalesce(gone.time, case when last.outcome <> 'taken_back' then last.ended_at end) end as ended_at,
        case when is_settled then last.turn else coalesce(gone.turn, last.turn) end as ended_turn
    from both_told m left join last_leader l on m.lane = l.lane
)
select lane, inbound, arrival_epoch, arrival, "group", size, cost, received_at, parked_at, times_parked,
    first_dispatched_at, last.dispatched_at as dispatched_at, last.committed_at as committed_at,
    last.confirmed_at as confirmed_at, ended_at, outcome, coalesce(last.reason, gone.reason) as reason,
    coalesce(hand_overs, 0) as hand_overs, last.attempt as attempts, coalesce(calls, 0) as calls,
    coalesce(consumers, []) as consumers,
    coalesce(columns('(wait_.*_us)'), 0) as '\1',
    case when ended_turn = first_turn and ended_at >= received_at
         then epoch_us(ended_at) - epoch_us(received_at) end as total_us
from ended;

-- The last that is told of the owner of each group or bucket, of its close and of its pin.
create table owners as
with told as (
    select *, {'turn': turn, 'ordinal': ordinal} as place,
        case when event in ('group_pinned', 'group_unpinned') then 'pin' else event end as kind
    from records
    where "group" is not null and event in ('owner_changed', 'closed', 'group_pinned', 'group_unpinned')
), latest as (
    select * from told qualify row_number() over (partition by lane, "group", kind order by turn desc, ordinal desc) = 1
)
select lane, "group", any_value(consumer) filter (kind = 'owner_changed') as consumer,
    any_value(incarnation) filter (kind = 'owner_changed') as incarnation,
    any_value(turn) filter (kind = 'owner_changed') as turn, any_value(time) filter (kind = 'owner_changed') as since,
    any_value(inbound) filter (kind = 'closed') as closed_inbound,
    any_value(arrival_epoch) filter (kind = 'closed') as closed_arrival_epoch,
    any_value(arrival) filter (kind = 'closed') as closed_arrival,
    any_value(consumer) filter (event = 'group_pinned') as pinned_to
from latest group by lane, "group";

-- Who joined, or was there when a leader began; also before and after the time that is looked at.
create table incarnations as
with known as (
    select lane, time, unnest(from_json(json_extract(detail, '$.consumers'),
        '[{"consumer": "VARCHAR", "incarnation": "VARCHAR", "prefetch": "INTEGER"}]')) as one
    from all_records where event = 'lane_started'
), told as (
    select lane, consumer, incarnation, json_extract_string(detail, '$.prefetch')::int as prefetch,
        case when event = 'consumer_joined' then time end as joined_at,
        case when event = 'consumer_taken_back' then time end as ended_at, null::timestamptz as known_at
    from all_records where event in ('consumer_joined', 'consumer_taken_back')
    union all
    select lane, one.consumer, one.incarnation, one.prefetch, null, null, time from known
)
select lane, consumer, incarnation, max(prefetch) as prefetch, coalesce(min(joined_at), min(known_at)) as joined_at,
    min(ended_at) as ended_at
from told group by lane, consumer, incarnation;

create table options as
select lane, turn, time as since, json_merge_patch(detail, '{"consumers": null}') as options
from all_records where event in ('lane_started', 'lane_changed') and json_valid(detail);

-- Groups of which order is promised. (Number 0 under an epoch is that of a lane that does not group.)
create table groups as
select lane, "group", count(*) as hand_overs, count(distinct incarnation) as incarnations,
    count(*) filter (outcome = 'open') as "open", min(dispatched_at) as first_at,
    max(coalesce(ended_at, dispatched_at)) as last_at
from hand_overs where "group" is not null and not coalesce(group_seq = 0 and epoch > 0, false)
group by lane, "group";

-- A lane stood still: from one sample of a leadership to the next nothing was handed over, though messages waited, the
-- lane was not paused and a consumer was there, or had messages in hand.
create table stalls as
with changes as (
    select lane, turn, writer, ordinal,
        case event when 'lane_paused' then true when 'lane_resumed' then false
            when 'lane_started' then json_extract(detail, '$.paused')::boolean end as paused,
        case event when 'consumer_joined' then 1 when 'consumer_taken_back' then -1
            when 'lane_started' then coalesce(json_array_length(detail, '$.consumers'), 0) else 0 end as came,
        case when event in ('group_paused', 'group_stopped') then 1
            when event in ('group_resumed', 'group_released', 'group_skipped', 'group_dropped') then -1
            else 0 end as held
    from all_records
    where event in ('lane_started', 'lane_paused', 'lane_resumed', 'consumer_joined', 'consumer_taken_back')
        or event in ('group_paused', 'group_stopped', 'group_resumed', 'group_released', 'group_skipped', 'group_dropped')
), samples as (
    select lane, turn, writer, time, max(ordinal) as ordinal, sum(waiting) as waiting, sum(in_flight) as in_flight,
        sum(messages) as handed_over
    from records where event = 'sampled' group by lane, turn, writer, time
), held as (
    select *, (select sum(held) from changes c where c.lane = s.lane
               and (c.turn, c.writer, c.ordinal) < (s.turn, s.writer, s.ordinal)) as held_groups,
        coalesce((select arg_max(paused, c.ordinal) from changes c where (c.lane, c.writer) = (s.lane, s.writer)
                  and c.ordinal < s.ordinal and paused is not null), false) as is_paused,
        coalesce((select sum(came) from changes c where (c.lane, c.writer) = (s.lane, s.writer)
                  and c.ordinal < s.ordinal), 0) as there
    from samples s
), steps as (
    select *, waiting > 0 and not is_paused and (there > 0 or in_flight > 0) as is_ready,
        lag(waiting > 0 and not is_paused and (there > 0 or in_flight > 0)) over leadership and is_ready
            and lag(handed_over) over leadership = handed_over as goes_on
    from held window leadership as (partition by lane, turn, writer order by ordinal)
), stretches as (
    select *, count(*) filter (not coalesce(goes_on, false))
        over (partition by lane, turn, writer order by ordinal) as stretch
    from steps
)
select lane, min(time) as since, max(time) as until, max(waiting) as waiting, max(in_flight) as in_flight,
    max(in_flight) - min(in_flight) as ended, greatest(coalesce(max(held_groups), 0), 0) as held_groups
from stretches where is_ready group by lane, turn, writer, stretch
having epoch_us(max(time)) - epoch_us(min(time)) >= 10_000_000;
