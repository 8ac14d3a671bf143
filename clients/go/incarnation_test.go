package messagegroups

import (
	"strconv"
	"testing"
)

func copyOf(seq int64, group string, epoch, groupSeq int64) *Message {
	return &Message{Seq: seq, key: group, Epoch: epoch, GroupSeq: groupSeq}
}

func TestWhatToDoWithACopy(t *testing.T) {
	me := newIncarnation()
	me.take(copyOf(10, "a", 5, 1))
	finished := copyOf(11, "a", 5, 2)
	me.take(finished)
	me.finish(finished, nil)
	for name, test := range map[string]struct {
		copy *Message
		look look
	}{
		"in hand":                     {copyOf(10, "a", 5, 1), ignore},
		"finished":                    {copyOf(11, "a", 5, 2), settleAgain},
		"the next":                    {copyOf(12, "a", 5, 3), start},
		"one is missing":              {copyOf(13, "a", 5, 4), gap},
		"the first of the next epoch": {copyOf(14, "a", 6, 1), start},
		"not the first of that":       {copyOf(14, "a", 6, 2), gap},
		"of an epoch that is over":    {copyOf(14, "a", 4, 1), gap},
		"the first of a new group":    {copyOf(15, "b", 7, 1), start},
		"not the first of that group": {copyOf(15, "b", 7, 2), gap},
		"nothing to check":            {copyOf(16, "", 0, 0), start},
	} {
		if found := me.look(test.copy); found != test.look {
			t.Errorf("%s: %d, not %d", name, found, test.look)
		}
	}
}

func TestTheHighestEpoch(t *testing.T) {
	me := newIncarnation()
	me.take(copyOf(1, "a", 7, 1))
	me.take(copyOf(2, "b", 5, 1))
	if me.epoch != 7 {
		t.Errorf("%d", me.epoch)
	}
}

func TestTheGroupThatGotSomethingLongestAgoIsForgotten(t *testing.T) {
	me := newIncarnation()
	for number := 0; number <= groupsMax; number++ {
		me.take(copyOf(int64(number+1), strconv.Itoa(number), 3, 1))
		if number == 1 {
			me.take(copyOf(groupsMax+2, "0", 3, 2))
		}
	}
	for group, wanted := range map[string]look{"0": gap, "1": start, "2": gap} {
		if found := me.look(copyOf(groupsMax+3, group, 3, 9)); found != wanted {
			t.Errorf("%q: %d, not %d", group, found, wanted)
		}
	}
	if found := me.look(copyOf(groupsMax+3, "1", 4, 9)); found != gap {
		t.Errorf("an epoch after that one: %d", found)
	}
}
