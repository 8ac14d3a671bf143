// Sets of numbers as the protocol writes them: [[first, last], …], ascending, without overlap.

/** The ranges of these ascending numbers. */
export function rangesOf(numbers) {
  const ranges = [];
  for (const number of numbers) {
    const last = ranges.at(-1);
    if (last !== undefined && number === last[1] + 1) last[1] = number;
    else ranges.push([number, number]);
  }
  return ranges;
}

/** A growing set of numbers that remembers ranges only. */
export class Ranges {
  #ranges = [];

  get length() {
    return this.#ranges.length;
  }

  has(number) {
    const range = this.#ranges[this.#indexOf(number)];
    return range !== undefined && range[0] <= number;
  }

  add(number) {
    const at = this.#indexOf(number);
    const next = this.#ranges[at];
    if (next !== undefined && next[0] <= number) return;
    const before = this.#ranges[at - 1];
    const follows = before !== undefined && before[1] + 1 === number;
    const precedes = next !== undefined && number + 1 === next[0];
    if (follows && precedes) {
      before[1] = next[1];
      this.#ranges.splice(at, 1);
    } else if (follows) before[1] = number;
    else if (precedes) next[0] = number;
    else this.#ranges.splice(at, 0, [number, number]);
  }

  /** Of the first range that does not end before this number. */
  #indexOf(number) {
    let low = 0;
    let high = this.#ranges.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#ranges[middle][1] < number) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
