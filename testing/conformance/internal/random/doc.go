// Package random tests a backend in random states with random connections, and reduces a failure to a small [Script]
// that causes it.
package random
