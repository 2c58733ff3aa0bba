// Package simple has the backend with which the suite and the judge test themselves: they must pass the simplest
// complete backend, and catch each of its mutants. It is only for their tests, and has the helpers that these share.
package simple
