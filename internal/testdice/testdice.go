// Package testdice makes the choices of random tests, from a seed or from the input of a fuzz test. Only tests use it.
package testdice

import "math/rand/v2"

// Dice make choices. The same ones make the same choices again.
type Dice interface {
	Roll(n int) int // 0 to n-1
}

// Seeded returns dice whose choices follow from a seed.
func Seeded(seed uint64) Dice { return seeded{rand.New(rand.NewPCG(seed, 0))} }

type seeded struct{ r *rand.Rand }

func (d seeded) Roll(n int) int { return d.r.IntN(n) }

// Input is the input of a fuzz test as dice: each choice takes a byte of it. When it is used up, every choice is the
// first.
type Input []byte

// Roll implements [Dice].
func (d *Input) Roll(n int) int {
	if len(*d) == 0 {
		return 0
	}
	b := (*d)[0]
	*d = (*d)[1:]
	return int(b) % n
}

// Pick returns one of a list.
func Pick[T any](d Dice, list ...T) T { return list[d.Roll(len(list))] }

// Some returns a part of a list, in its order.
func Some[T any](d Dice, list ...T) []T {
	var out []T
	for _, v := range list {
		if d.Roll(2) == 0 {
			out = append(out, v)
		}
	}
	return out
}

// OneIn is true once in n times.
func OneIn(d Dice, n int) bool { return d.Roll(n) == n-1 }
