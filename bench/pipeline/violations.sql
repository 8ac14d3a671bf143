-- The rules of docs/ledger.md, by comparing each hand-over with each other one of its group: only for small ledgers.
-- Hand-overs without an end or a beginning are left out, and lanes that hand over, where a settle says less.

create table judged as
select *, (began_turn, epoch_us(dispatched_at)) as began, (turn, epoch_us(ended_at)) as ended
from hand_overs
where "group" is not null and group_seq > 0 and inbound is not null and outcome <> 'open'
    and lane not in (from handing_over);

-- A message that failed and that an operator released: `is_released` before, `was_released` behind.
create table releases as
select a.lane, a.incarnation, a.seq, bool_or(b.outcome = 'failed' and b.ended <= a.began) as was_released,
    bool_or(a.outcome = 'failed' and a.ended <= b.began) as is_released
from judged a join judged b using (lane, inbound, arrival_epoch, arrival)
group by a.lane, a.incarnation, a.seq;

-- Whether it was released can't be said of one whose hand-over before has no end.
create table unknown as
select lane, incarnation, seq
from (select *, lag(outcome) over (partition by lane, inbound, arrival_epoch, arrival order by attempt, epoch, group_seq,
                                   turn) as former from hand_overs)
where attempt > 1 and coalesce(former = 'open', true);

-- May groups have two owners for a moment: by an option, or because an operator moved them so.
create table moving as
select distinct lane from all_records
where event = 'lane_started' and json_extract_string(detail, '$.rebalance_pause') = 'none'
    or event = 'groups_moving' and json_extract_string(detail, '$.pause') = 'none';

create table violations as
select distinct b.lane, 'order' as rule, b.incarnation, b.seq
from (from judged join releases using (lane, incarnation, seq)) a
join (from judged join releases using (lane, incarnation, seq) anti join unknown using (lane, incarnation, seq)) b
    on (a.lane, a."group", a.inbound) = (b.lane, b."group", b.inbound)
    and (a.epoch, a.group_seq) < (b.epoch, b.group_seq)
    and (a.arrival_epoch, a.arrival) > (b.arrival_epoch, b.arrival)
where not (a.outcome = 'taken_back' and a.ended <= b.began)
    and not b.was_released and not (a.is_released and b.attempt > 1)
union all
select distinct b.lane, 'overlap', b.incarnation, b.seq
from judged a
join judged b on (a.lane, a."group") = (b.lane, b."group") and a.incarnation <> b.incarnation
    and (a.began, a.epoch, a.group_seq) < (b.began, b.epoch, b.group_seq)
where a.ended > b.began and b.ended > b.began and b.lane not in (from moving);
