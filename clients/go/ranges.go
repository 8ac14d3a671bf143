package messagegroups

import "sort"

// ranges are ascending ranges of numbers, first and last included, as the protocol has them.
type ranges [][2]int64

// rangesOf the numbers, in any order, none twice.
func rangesOf(numbers []int64) ranges {
	made := ranges{} // nil would be written as null
	sort.Slice(numbers, func(a, b int) bool { return numbers[a] < numbers[b] })
	for _, number := range numbers {
		if at := len(made) - 1; at >= 0 && made[at][1]+1 == number {
			made[at][1] = number
		} else {
			made = append(made, [2]int64{number, number})
		}
	}
	return made
}

// indexOf the first range that does not end before this number.
func (r ranges) indexOf(number int64) int {
	return sort.Search(len(r), func(at int) bool { return r[at][1] >= number })
}

func (r ranges) has(number int64) bool {
	at := r.indexOf(number)
	return at < len(r) && r[at][0] <= number
}

func (r ranges) with(number int64) ranges {
	at := r.indexOf(number)
	if at < len(r) && r[at][0] <= number {
		return r
	}
	follows := at > 0 && r[at-1][1]+1 == number
	precedes := at < len(r) && number+1 == r[at][0]
	switch {
	case follows && precedes:
		r[at-1][1] = r[at][1]
		return append(r[:at], r[at+1:]...)
	case follows:
		r[at-1][1] = number
	case precedes:
		r[at][0] = number
	default:
		r = append(r, [2]int64{})
		copy(r[at+1:], r[at:])
		r[at] = [2]int64{number, number}
	}
	return r
}
