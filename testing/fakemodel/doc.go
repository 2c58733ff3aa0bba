// Package fakemodel tests backends and other sinks offline: it feeds a sink in waves, like kubeproxy.Run, without a
// cluster, a clock or other goroutines, and records the calls.
//
// # Feeding a sink
//
// A [Driver] takes model values, cluster objects or YAML, and applies them with Sync. It retries after a failure,
// requests full resyncs, and restarts the backend on the existing dataplane:
//
//	d := fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return mybackend.New(dataplane) }})
//	d.Set(fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
//	d.Sync()
//	d.Want("SetNode n1", "SetService default/web", "Sync")
//	d.Restart()
//
// A [sink.Recorder] records the calls. A feed that violates the contract of [sink.Sink] ends the test.
//
// # Building values
//
// [Service], [Endpoint] and [Node] build model values; package kube builds cluster objects. Both have good defaults.
// From cluster objects, package localstate computes the model values: which endpoints are used, and for which traffic.
// Model values state this themselves.
//
// # Expectations
//
// [Driver.Want] lists the calls. [Golden] compares a longer text with a file; FAKEMODEL_UPDATE=1 in the environment
// updates the files. [Driver.State] is the input of package oracle, which decides what must happen to packets.
//
// # Faults
//
// [Driver.FailNext] makes the next Syncs fail. [Faults] makes a fake dataplane's operations fail at random,
// reproducibly by seed.
//
// # What it never does
//
// It opens no connections and touches no dataplane. Package conformance tests whether a backend's rules treat packets
// correctly.
package fakemodel
