// Package tests verifies a pool with real Kubernetes programs and client-go. Every test can run alone: go test ./tests
// -run '^TestPoolSync$' -v. One cloud is started on first use and shared by all of them. Each test creates a pool with
// unique node names, which identify it in the cloud's audit log.
package tests
