package frontend

// Compared returns how many claims have been compared with others.
func (t *Table) Compared() (n int) {
	for _, f := range t.families {
		n += f.owners.compared
	}
	return n
}
