package diffstore_test

import (
	"cmp"
	"errors"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/diffstore"
)

// printDiff ends a wave and prints its diff: C for created, U for updated, D for deleted.
func printDiff[K cmp.Ordered, L diffstore.Leaf[L]](store *diffstore.Store[K, L]) {
	store.Done()
	fmt.Println("-----")
	if !store.HasChanges() {
		fmt.Println("<same>")
	}
	for e := range store.Created() {
		fmt.Println("C", e.Key(), "=>", e.Value())
	}
	for e := range store.Updated() {
		old, _ := e.Applied()
		fmt.Println("U", e.Key(), "=>", e.Value(), "was", old)
	}
	for e := range store.Deleted() {
		fmt.Println("D", e.Key())
	}
}

func Example() {
	store := diffstore.NewBufferStore[string]()

	fmt.Fprint(store.Get("a"), "hello a")
	printDiff(store)

	store.Reset()
	fmt.Fprint(store.Get("a"), "hello a")
	printDiff(store)

	store.Reset()
	fmt.Fprint(store.Get("a"), "hello a")
	fmt.Fprint(store.Get("b"), "hello b")
	printDiff(store)

	store.Reset()
	fmt.Fprint(store.Get("a"), "hi a")
	printDiff(store)

	store.Reset()
	printDiff(store)

	// Output:
	// -----
	// C a => hello a
	// -----
	// <same>
	// -----
	// C b => hello b
	// -----
	// U a => hi a was hello a
	// D b
	// -----
	// D a
}

// An entry that could not be applied is in the next diff, although its value does not change.
func ExampleStore_NotApplied() {
	store := diffstore.NewBufferStore[string]()
	apply := func(key string) error {
		if key == "chain/web" {
			return errors.New("device or resource busy")
		}
		return nil
	}
	for range 2 {
		store.Reset()
		fmt.Fprint(store.Get("chain/dns"), "dnat to 192.168.0.2:53")
		fmt.Fprint(store.Get("chain/web"), "dnat to 192.168.0.3:80")
		store.Done()
		for e := range store.Changed() {
			err := apply(e.Key())
			fmt.Println(e.Change(), e.Key(), "retry:", e.Retry(), "error:", err)
			if err != nil {
				store.NotApplied(e.Key())
			}
		}
	}
	// Output:
	// created chain/dns retry: false error: <nil>
	// created chain/web retry: false error: device or resource busy
	// created chain/web retry: true error: device or resource busy
}

// A new process tells the store what it finds in the kernel, and then changes only what differs.
func ExampleStore_Seed() {
	store := diffstore.NewBufferStore[string]()
	fmt.Fprint(store.Seed("10.0.0.1"), "192.168.0.2, 192.168.0.3")
	fmt.Fprint(store.Seed("10.0.0.2"), "192.168.0.4")
	fmt.Fprint(store.Seed("10.0.0.3"), "192.168.0.5")

	fmt.Fprint(store.Get("10.0.0.1"), "192.168.0.2, 192.168.0.3")
	fmt.Fprint(store.Get("10.0.0.2"), "192.168.0.4, 192.168.0.6")
	printDiff(store)
	// Output:
	// -----
	// U 10.0.0.2 => 192.168.0.4, 192.168.0.6 was 192.168.0.4
	// D 10.0.0.3
}

// A wave that changes the last one mentions only what is new.
func ExampleStore_Amend() {
	store := diffstore.NewBufferStore[string]()
	fmt.Fprint(store.Get("a"), "hello a")
	fmt.Fprint(store.Get("b"), "hello b")
	fmt.Fprint(store.Get("c"), "hello c")
	printDiff(store)

	store.Amend()
	fmt.Fprint(store.Get("b"), "hi b")
	store.Delete("c")
	printDiff(store)
	// Output:
	// -----
	// C a => hello a
	// C b => hello b
	// C c => hello c
	// -----
	// U b => hi b was hello b
	// D c
}

func ExampleNewAnyStore() {
	type server struct {
		weight      int
		connections int // counted by the kernel: not a difference
	}
	store := diffstore.NewAnyStore[int](func(a, b server) bool { return a.weight == b.weight })

	store.Seed(8080).Set(server{weight: 1, connections: 17})
	store.Seed(8081).Set(server{weight: 1, connections: 4})

	store.Get(8080).Set(server{weight: 1})
	store.Get(8081).Set(server{weight: 0})
	store.Done()
	for e := range store.Changed() {
		fmt.Println(e.Change(), e.Key(), "weight", e.Value().Get().weight)
	}
	// Output:
	// updated 8081 weight 0
}
