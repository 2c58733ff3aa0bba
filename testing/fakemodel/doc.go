// Package fakemodel tests backends and other sinks offline: it feeds a sink wave by wave as package kubeproxy's Run
// does, without a cluster, a clock or another goroutine, and records the calls.
//
// # Feeding a sink
//
// A [Driver] takes model values, cluster objects or YAML, and applies them with Sync. It retries after a failure, asks
// for full resyncs, and restarts the backend with the existing dataplane:
//
//	d := fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return mybackend.New(dataplane) }})
//	d.Set(fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
//	d.Sync()
//	d.Want("SetNode n1", "SetService default/web", "Sync")
//	d.Restart()
//
// The calls are recorded by a [sink.Recorder], and a feed that breaks the contract of [sink.Sink] ends the test.
//
// # Building values
//
// [Service], [Endpoint] and [Node] build model values, package kube builds cluster objects, both with good defaults.
// Given cluster objects, the driver has package localstate work out the model values: which endpoints are used, and for
// which traffic. Model values say it themselves.
//
// # Expectations
//
// [Driver.Want] lists the calls; [Golden] compares a longer text with a file; FAKEMODEL_UPDATE=1 in the environment
// updates the files. [Driver.State] is for package oracle, which says what must happen to packets.
//
// # Faults
//
// [Driver.FailNext] fails the next Syncs. [Faults] fails a fake dataplane's operations at random, reproducibly by seed.
//
// # What it never does
//
// It opens no connections and touches no dataplane itself. Package conformance tests whether a backend's rules handle
// packets correctly.
package fakemodel
