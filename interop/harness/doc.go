// Package harness starts a real cloud (etcd, kube-apiserver, kube-controller-manager, hollow nodes) and our own
// binaries (yurt-coordinator, yurthub) on loopback. It gives the tests the cloud's audit log, the hubs' state, a link
// between hub and cloud that can be cut, and clients that count their requests.
//
// Reading order: [StartCloud] (cloud.go), [Cloud.StartPool] (pool.go), [Link] (link.go), [Cloud.PoolRequests]
// (audit.go), [Transport] (transport.go). Everything listens on 127.0.0.1 and lives in one temporary folder;
// every process is in its own process group and dies with the process that started it.
package harness
