// Package dataplane is the part of the Windows Host Networking Service (HNS, version 2) that package hns needs:
// networks, endpoints and load balancers, as plain values behind an [Interface].
//
//   - [NewHNS] is the service of this machine. It exists on Windows only; elsewhere it fails with
//     [errors.ErrUnsupported].
//   - [Fake] is a model of the service for tests that run anywhere, with the known faults of the real one. It can also
//     simulate what happens to a packet: [Fake.Forward].
//
// The real service is reached through github.com/Microsoft/hnslib/hcn, the part of hcsshim that kube-proxy uses too, as
// a separate module: hcsshim itself would bring gRPC, protobuf and OpenCensus into every go.sum.
package dataplane
