// Package ci tests the runner of the checks, .ci/run and .ci/deep, with steps that the tests make up: what it does
// about a failure, what it says at the end, and that it runs the right tests again. It has tests only.
package ci
