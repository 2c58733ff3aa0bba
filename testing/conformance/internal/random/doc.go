// Package random tests a backend in random states with random connections, and reduces what led to a failure to a small
// [Script].
package random
