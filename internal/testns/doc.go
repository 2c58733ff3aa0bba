// Package testns gives tests network namespaces of their own. It is empty on other systems than Linux.
package testns
