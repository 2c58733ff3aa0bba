// Package ci tests the runner of the checks, .ci/run and .ci/deep, with steps that the tests make up: what it does about
// a failure, what it says at the end, and that the failed tests it runs again are the right ones. It has tests only.
package ci
