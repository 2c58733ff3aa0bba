package testkit

import "math/rand/v2"

// Random makes the choices of a random test: from a seed ([Seeded]), or from the [Input] of a fuzz test.
type Random interface {
	IntN(n int) int // 0 to n-1
}

// Seeded returns choices that depend only on a seed.
func Seeded(seed uint64) Random { return rand.New(rand.NewPCG(seed, 0)) }

// Input is a fuzz input as a source of choices: each takes one byte. When it is used up, every choice is 0.
type Input []byte

// IntN implements [Random].
func (in *Input) IntN(n int) int {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return int(b) % n
}

// Pick returns a random element of a list.
func Pick[T any](r Random, list ...T) T { return list[r.IntN(len(list))] }

// Some returns a random part of a list, in its order.
func Some[T any](r Random, list ...T) []T {
	var out []T
	for _, v := range list {
		if r.IntN(2) == 0 {
			out = append(out, v)
		}
	}
	return out
}

// OneIn is true with probability 1/n.
func OneIn(r Random, n int) bool { return r.IntN(n) == n-1 }
