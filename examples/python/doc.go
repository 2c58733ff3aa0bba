// Package python has no Go code: print_state.py is a client of a brain in Python. Its test compares it with
// print-state.
package python
