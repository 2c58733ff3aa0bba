// Package testns gives tests network namespaces of their own. It is empty on systems other than Linux.
package testns
