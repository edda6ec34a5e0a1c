// Package tests shows with real Kubernetes programs and client-go that a pool does what it promises. Every test can be
// run alone: go test ./tests -run '^TestPoolSync$' -v. One cloud is started on first use and shared by all of them;
// each test makes a pool with node names of its own, so that the cloud's audit log can tell them apart.
package tests
