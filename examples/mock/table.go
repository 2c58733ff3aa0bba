package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// row is what a row of the routing table matches: a destination and a kind of source.
type row struct{ destination, from string }

func (r row) String() string { return fmt.Sprintf("%s from %s:", r.destination, r.from) }

// action is a row's action: balance over endpoints, reject, or drop.
type action struct{ do, masquerade, service string }

func (a action) String() string {
	if a.masquerade == "" {
		return a.do
	}
	return fmt.Sprintf("%s (masquerade: %s)", a.do, a.masquerade)
}

// sortedRows returns the distinct rows of some tables, sorted.
func sortedRows(tables ...map[row]action) []row {
	rows := map[row]action{}
	for _, t := range tables {
		maps.Copy(rows, t)
	}
	return slices.SortedFunc(maps.Keys(rows), func(a, b row) int {
		return cmp.Or(cmp.Compare(a.destination, b.destination), cmp.Compare(a.from, b.from))
	})
}

// printTable prints the whole routing table.
func (b *backend) printTable(out io.Writer) error {
	all := map[row]action{}
	for _, rows := range b.table {
		maps.Copy(all, rows)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERVICE PORT\tDESTINATION\tFROM\tGOES TO\tMASQUERADE")
	rows := sortedRows(all)
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(all[a].service, all[b].service) })
	for _, r := range rows {
		a := all[r]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", a.service, r.destination, r.from, a.do, cmp.Or(a.masquerade, "-"))
	}
	return w.Flush()
}
