// Package cluster has the clusters of the suite: how the node is configured ([Setup]), its services as a case or a
// random state describes them ([Service]), the objects that follow from them, and the [State] that a backend is given.
package cluster
