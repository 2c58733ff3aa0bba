// Package python has only a test, which compares print_state.py, a client of a brain in Python,
// with kubectl serviceproxy.
package python
