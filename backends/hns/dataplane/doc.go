// Package dataplane is what package hns needs of the Windows Host Networking Service (HNS, version 2): networks,
// endpoints and load balancers, as plain values behind an [Interface].
//
//   - [NewHNS] is the service of this machine. It exists on Windows only; elsewhere it fails with [errors.ErrUnsupported].
//   - [Fake] is a model of the service for tests that run anywhere, with the faults that the real one is known for. It
//     can also tell what would become of a packet: [Fake.Forward].
//
// The real service is reached through github.com/Microsoft/hnslib/hcn, the part of hcsshim that kube-proxy uses too, in
// a module of its own: hcsshim itself would bring gRPC, protobuf and OpenCensus into every go.sum.
package dataplane
