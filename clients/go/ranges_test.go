package messagegroups

import (
	"math/rand"
	"reflect"
	"testing"
)

func TestRangesOfNumbersInAnyOrder(t *testing.T) {
	if found := rangesOf([]int64{7, 3, 1, 2, 8}); !reflect.DeepEqual(found, ranges{{1, 3}, {7, 8}}) {
		t.Error(found)
	}
	if found := rangesOf(nil); found == nil {
		t.Error("no numbers would be written as null")
	}
}

func TestRangesGrowAsTheirNumbersDo(t *testing.T) {
	var grown ranges
	numbers := []int64{}
	for at, number := range rand.New(rand.NewSource(1)).Perm(300) {
		grown = grown.with(int64(number)).with(int64(number))
		numbers = append(numbers, int64(number))
		if wanted := rangesOf(append([]int64{}, numbers...)); !reflect.DeepEqual(grown, wanted) {
			t.Fatalf("after %d numbers: %v, not %v", at+1, grown, wanted)
		}
	}
	if !grown.has(0) || !grown.has(299) || grown.has(300) || grown.has(-1) {
		t.Error(grown)
	}
}
